"""The meters' benchmark on a scripted board: it runs, and its figures are of what it says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.meter_tools import lend_unused

ROOT = Path(__file__).parents[2]
TINY = "--windows 1 --seconds 0.5 --repeats 2 --pairs 4 --block-seconds 0.3 --width 16 --batch-size 16"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    if shutil.which("cc") is None and "CI" not in os.environ:
        pytest.skip("no C compiler to build the scripted board with")
    out = tmp_path_factory.mktemp("meters") / "meters.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.meters", "--out", str(out), *TINY.split()]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)
    found = json.loads(out.read_text())["rows"]
    return {f"{row['measured']} {row.get('tool', row.get('peer', ''))}".strip(): row for row in found}


def test_the_board_and_what_was_left_out_are_named(rows: dict[str, dict[str, object]]) -> None:
    setting = rows["setting"]
    assert (setting["scripted_board"], setting["method"]) == (True, "nvml.counter")
    assert 0.05 < float(str(setting["update_period_s"])) < 0.5
    left_out = setting["left_out"]
    assert isinstance(left_out, dict)
    compared = {name.split()[1] for name in rows if name.startswith("agreement")}
    assert compared | set(left_out) == {"zeus", "codecarbon"}


def test_a_window_s_cost_is_told_for_each_tool(rows: dict[str, dict[str, object]]) -> None:
    for tool in ("ghostwatt", "ghostwatt with power at the edges"):
        row = rows[f"cost {tool}"]
        assert row["windows"] == 2
        assert float(str(row["begin_us_median"])) > 0
        assert float(str(row["end_us_median"])) > 0


def test_the_sampler_is_compared_with_itself_absent(rows: dict[str, dict[str, object]]) -> None:
    row = rows["sampler"]
    interval = row["interval_95_percent"]
    assert isinstance(interval, list)
    low, high = interval
    assert low <= float(str(row["step_time_change_percent"])) <= high
    assert row["pairs_of_blocks"] == 4
    # Each of four turns ends with at least one batch of power and the sampler's own account.
    assert int(str(row["batches_spooled"])) >= 8


def test_a_module_that_is_not_installed_is_lent_and_says_so_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert lend_unused(("json", "not_installed_anywhere")) == ["not_installed_anywhere"]
    from not_installed_anywhere import something  # type: ignore[import-not-found]

    with pytest.raises(
        ImportError, match=r"something.deep was called after all; install not_installed_anywhere"
    ):
        something.deep(1)
