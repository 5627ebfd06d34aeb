"""The meters' benchmark on a scripted board: it runs, and its figures are of what it says."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.meter_tools import Ghostwatt, GhostwattInJobs, lend_unused
from benchmarks.meter_windows import turns
from benchmarks.meters import Result
from benchmarks.paired import paired_ratio
from benchmarks.quote import meters
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo

ROOT = Path(__file__).parents[2]
TINY = "--windows 1 --seconds 0.5 --repeats 8 --slow-repeats 6 --pairs 6 --block-seconds 0.2 --width 16 --batch-size 16"


def measure(out: Path, *options: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.meters", "--out", str(out), *TINY.split(), *options]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The file after the sampler's part, and after the other parts were appended."""
    if shutil.which("cc") is None and "CI" not in os.environ:
        pytest.skip("no C compiler to build the scripted board with")
    out = tmp_path_factory.mktemp("meters") / "meters.json"
    found = []
    for options in (["--only", "sampler"], ["--only", "agreement", "cost", "--append"]):
        measure(out, *options)
        found.append(json.loads(out.read_text()))
    return found


@pytest.fixture(scope="module")
def rows(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = documents[-1]["rows"]
    return {f"{row['measured']} {row.get('tool', row.get('peer', ''))}".strip(): row for row in found}


def test_the_board_and_what_was_left_out_are_named(
    documents: list[dict[str, Any]], rows: dict[str, dict[str, Any]]
) -> None:
    setting = rows["setting"]
    assert (setting["scripted_board"], setting["method"]) == (True, "nvml.counter")
    # Each looked for its own for a moment, in which one of them may have been held up.
    periods = [
        float(row["update_period_s"])
        for each in documents
        for row in each["rows"]
        if "update_period_s" in row
    ]
    assert 0.05 < min(periods) < 0.5
    left_out = setting["left_out"]
    assert isinstance(left_out, dict)
    compared = {name.split()[1] for name in rows if name.startswith("agreement")}
    assert compared | set(left_out) == {"zeus", "codecarbon"}


def test_a_window_s_cost_is_told_for_each_tool(rows: dict[str, dict[str, Any]]) -> None:
    for tool in ("ghostwatt", "ghostwatt with power at the edges"):
        row = rows[f"cost {tool}"]
        assert row["windows"] == 8
        assert float(str(row["begin_us_median"])) > 0
        assert float(str(row["end_us_median"])) > 0


def test_the_sampler_is_compared_with_itself_absent(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["sampler"]
    interval = row["interval_95_percent"]
    assert isinstance(interval, list)
    low, high = interval
    assert low <= float(str(row["step_time_change_percent"])) <= high
    assert row["pairs_of_blocks"] == 6
    # Each of seven turns ends with at least one batch of power and the sampler's own account.
    assert int(str(row["batches_spooled"])) >= 14


def test_what_the_driver_s_own_calls_cost_stands_beside_what_tools_add(
    rows: dict[str, dict[str, Any]],
) -> None:
    assert all(rows["calls"][f"{call}_us_median"] > 0 for call in ("counter", "power", "both_at_once"))
    ratio = rows["cost ratio ghostwatt"]
    low, high = ratio["begin_ratio_95_percent"]
    assert low <= ratio["begin_ratio"] <= high


def test_parts_that_are_measured_one_after_the_other_land_in_one_file(
    documents: list[dict[str, Any]],
) -> None:
    alone, together = documents
    assert {row.get("part") for row in alone["rows"]} == {None, "sampler"}
    assert {row.get("part") for row in together["rows"]} >= {None, "cost", "sampler"}
    kept = [row for row in together["rows"] if row.get("part") == "sampler"]
    assert kept == alone["rows"][1:]
    assert "--only sampler" in kept[0]["command"]
    assert all(
        "--only agreement cost" in row["command"] for row in together["rows"] if row.get("part") == "cost"
    )
    assert len([row for row in together["rows"] if row["measured"] == "setting"]) == 1
    assert "step time with the sampler" in meters(together)


def result(path: Path, *, keep: bool = True, **setting: object) -> Result:
    common = {"board": "H200", "scripted_board": True, "driver": "570", "method": "nvml.counter"}
    told = {"measured": "setting", **common, "versions": {}, "left_out": {}, "codecarbon_without": []}
    return Result(path, told | setting, 0.0, keep=keep)


def test_a_part_that_is_measured_again_takes_its_own_rows_place(tmp_path: Path) -> None:
    path = tmp_path / "meters.json"
    for counter_us in (1.0, 2.0):
        shown = result(path)
        shown.show("cost", [{"measured": "calls", "counter_us_median": counter_us}])
    rows = json.loads(path.read_text())["rows"]
    assert [row.get("counter_us_median") for row in rows] == [None, 2.0]
    result(path, keep=False).show("cost", [])
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_rows_of_another_board_or_driver_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "meters.json"
    result(path).show("cost", [])
    for other in ({"board": "A100"}, {"driver": "580"}, {"scripted_board": False}, {"method": "nvml.power"}):
        with pytest.raises(SystemExit, match="write to another --out"):
            result(path, **other)


@pytest.mark.parametrize(("pairs", "inside"), [(6, 1), (10, 2), (20, 6), (300, 133)])
def test_a_median_s_interval_goes_between_the_order_statistics_of_the_sign_test(
    pairs: int, inside: int
) -> None:
    ratios = [1.0 + n for n in range(pairs)]
    found = paired_ratio(random.Random(pairs).sample(ratios, pairs), [1.0] * pairs)
    assert (found.low, found.high) == (float(inside), float(pairs + 1 - inside))
    assert found.ratio == (pairs + 1) / 2


def test_five_pairs_give_no_interval_and_none_no_ratio() -> None:
    found = paired_ratio([2.0] * 5, [1.0] * 5)
    assert (found.ratio, found.low, found.high) == (2.0, None, None)
    with pytest.raises(ValueError, match="at least one pair"):
        paired_ratio([], [])


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


class CountedMeter(MeterBase):
    """A counter that has moved whenever it is asked for, and says how often that was."""

    def __init__(self) -> None:
        self.device = DeviceInfo(
            host="host", uuid="GPU-1", kind="cuda", name="H100", method="nvml.counter", scope="gpu"
        )
        self.reads = 0

    def read_energy(self) -> EnergyReading:
        self.reads += 1
        return EnergyReading(Instant.now(), 1_000.0 * self.reads, "nvml.counter", "gpu", lag_s=0.1)

    def read_power(self) -> PowerReading:
        return PowerReading(Instant.now(), 100_000.0, "instant")

    def read_state(self) -> BoardState:
        raise NotImplementedError


def test_an_evaluation_begins_where_training_was_read_and_another_tool_s_is_read_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, plain = GhostwattInJobs(CountedMeter()), Ghostwatt(CountedMeter())
    (rows,) = turns(ours, [plain], 9, 0.002)
    assert [row["measured"] for row in rows] == ["turn", "turn", "turn ratio"]
    assert isinstance(ours.meter, CountedMeter)
    assert isinstance(plain.meter, CountedMeter)
    # Nine turns of each, and one to warm up.
    assert (ours.meter.reads, plain.meter.reads) == (10 * 3, 10 * 4)
    low, high = rows[2]["ratio_95_percent"]
    assert low <= rows[2]["ratio"] <= high
    shown = result(tmp_path / "meters.json")
    shown.show("turns", rows)
    assert "ghostwatt with power at the edges / ghostwatt" in capsys.readouterr().out
    told = meters(json.loads((tmp_path / "meters.json").read_text()))
    assert "training and evaluation |" in told
