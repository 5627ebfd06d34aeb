"""Tables, figure and errors of training steps say what the result files say."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import predictions, quote_layers
from benchmarks.figure import RESULTS, drawn
from benchmarks.layer_rows import summarise
from benchmarks.memory_rate import MEMORY_BURST
from benchmarks.quote import TABLES, origin
from tests.benchmarks.layer_results import arm, layers
from tests.phantom_core.profiles import round_profile


def test_sizes_show_every_arm_with_its_interval_or_the_reason_why_not() -> None:
    shown = quote_layers.sizes(layers()["rows"])
    lines = [line for line in shown.splitlines() if line.startswith("| 16384")]
    assert len(lines) == 4
    phantom = next(line for line in lines if "| phantom |" in line)
    # Rounds of both arms rise and fall together, so the paired ratio is sharp.
    assert (
        "| 5.80 ± 0.06 | 0.29 [0.29, 0.29] | 2.10 | 0.30 [0.30, 0.30] | 690 | 8.5 | 71% | 5% [4%, 6%] | "
        "1.40 x gemm |" in phantom
    )
    assert any("| tensor gather | not measured: needs about 90 GB |" in line for line in lines)
    assert any("| low-rank | unknown | unknown | 2.00 |" in line for line in lines)
    assert "700 TFLOP/s" in shown


def test_communication_that_was_not_measured_is_unknown_and_a_block_diagonal_arm_s_says_why() -> None:
    block = {"strategy": "block_diagonal"}
    why = "hidden layers exchange nothing, the outputs' sum was not measured apart"
    for changes, share, told in (
        ({}, "unknown", True),
        ({"silent": {"ms_per_step": 1.9}}, "5%", False),
        ({"p": 1}, "none", False),
    ):
        result = arm("block-diagonal", 2.0, 5.0, **block, **changes)
        rows = [row for row in layers()["rows"] if row["measured"] == "setting"] + [result]
        summarise([result])
        shown = quote_layers.sizes(rows)
        assert f"| {share} | 1.33 x gemm |" in shown
        assert (why in shown) == told
    assert why not in quote_layers.sizes(layers()["rows"])


def test_a_step_is_held_against_the_joules_that_its_parts_drew_alone() -> None:
    loads = [
        {"load": "active", "power_w": 100.0},
        {"load": "gemm", "power_w": 700.0, "flops_per_s": 500e12, "operand_bytes_per_s": 0.5e12},
        {"load": "memory", "power_w": 500.0, "bytes_per_s": 2e12},
    ]
    setting = {"power_limit_w": 600.0, "ceilings": loads}
    row = {"ms_per_step": 9.0, "flops_per_step_per_rank": 2e12, "floor": {"memory_ms": 1.0}}
    # 0.2 nJ a byte; a FLOP's (700 - 100 - 100) W / 500 TFLOP/s = 1 pJ; 2 J and 0.4 J at 500 W above idle.
    assert quote_layers.joules_at_limit_ms(row, setting) == pytest.approx(4.8)
    # As many bytes, whose floor was told at the optimizer's rate.
    burst = {"measured": "burst", "load": MEMORY_BURST, "bytes_per_s": 4e12, "from": "profile.json"}
    faster = row | {"floor": {"memory_ms": 0.5}}
    assert quote_layers.joules_at_limit_ms(faster, setting | {"ceilings": [*loads, burst]}) == pytest.approx(
        4.8
    )
    shown = quote_layers.sizes(layers()["rows"])
    assert "| unknown |" in shown, "there no load's power is told"
    assert "(memory:" not in shown
    for missing in (setting | {"power_limit_w": None}, setting | {"ceilings": loads[1:]}):
        assert quote_layers.joules_at_limit_ms(row, missing) is None


def test_what_memory_s_ceiling_was_measured_with_is_told() -> None:
    rows = layers()["rows"]
    setting = next(row for row in rows if row["measured"] == "setting")
    setting["ceilings"].append({"load": MEMORY_BURST, "bytes_per_s": 4.2e12, "from": "profile.json"})
    told = "(memory: 4.20 TB/s, of the optimizer's pass, as `profile.json` has it for such boards)"
    assert told in quote_layers.sizes(rows)


def test_targets_say_reached_or_not() -> None:
    shown = quote_layers.targets(layers()["rows"])
    assert "| 16384 | J per step against column/row | 0.29 [0.28, 0.30] | ≤ 0.30 | reached |" in shown
    assert "| 16384 | ms per step against the largest roofline term | 1.40 | ≤ 1.15 | not reached |" in shown


@pytest.mark.parametrize(
    ("joules", "verdict"), [(5.8, "reached"), (5.95, "undecided"), (6.05, "undecided"), (6.2, "not reached")]
)
def test_a_target_within_what_the_readings_may_be_off_by_is_undecided(joules: float, verdict: str) -> None:
    rows = [arm("tensor column/row", 7.0, 20.0), arm("phantom", 2.1, joules)]
    summarise(rows)
    (target, _) = rows[1]["targets"]
    assert (target["value"], target["verdict"]) == (pytest.approx(joules / 20), verdict)


def test_a_target_of_readings_without_a_bound_is_undecided() -> None:
    rows = [arm("tensor column/row", 7.0, 20.0), arm("phantom", 2.1, 5.0)]
    for each in rows[0]["rounds"]:
        each["j_per_step_bound"] = None
    summarise(rows)
    assert rows[1]["targets"][0]["verdict"] == "undecided"
    assert "| 0.25 [unknown] | ≤ 0.30 | undecided |" in quote_layers.targets(rows)


def test_exposed_communication_is_told_with_its_interval_and_as_it_came_out() -> None:
    rows = layers()["rows"]
    assert "| 5% [4%, 6%] |" in quote_layers.sizes(rows)
    slower = arm("phantom", 2.1, 5.8, silent={"ms_per_step": 2.121})
    summarise([slower])
    assert slower["exposed_share"] == pytest.approx(-0.01)
    assert slower["exposed_share_low"] is None


def test_a_sweep_shows_what_was_varied_alone() -> None:
    shown = quote_layers.sweep(layers()["rows"], "k")
    assert "| 16384, 8, 64, 1024, 4 | phantom |" in shown
    assert "| 16384, 8, 256, 1024, 4 | phantom |" in shown
    assert "low-rank" not in shown
    assert quote_layers.sweep(layers()["rows"], "p") == "Not measured yet."


def test_every_step_table_ends_with_its_origin() -> None:
    result = layers()
    assert TABLES["layers.sizes"](result).endswith(f"{origin(result)}.")


def test_attribution_shows_intervals_and_what_is_unknown() -> None:
    interval = {"mean": 1.0, "low": 0.9, "high": 1.1}
    row = {
        "n": 4096,
        "arm": "phantom",
        "variants": {"whole": {"ms_per_step": 5.0, "j_per_step": 2.0}},
        "parts": {"optimizer": {"ms": interval, "j": interval}, "communication": {"ms": None, "j": None}},
        "timeline": {"gemm_ms": 2.5, "gaps_ms": 0.25},
    }
    failed = {"n": 4096, "arm": "tensor", "reasons": {"whole": "too large"}}
    shown = quote_layers.attribution([row, failed])
    assert (
        "| 4096 | phantom | 5.000 ms, 2.00 J | unknown | 1.000 [0.900, 1.100] ms, 1.00 [0.90, 1.10] J | – | – | "
        "2.500 ms | 0.250 ms |"
    ) in shown
    assert "| 4096 | tensor | not measured: too large |" in shown


def test_the_figure_is_well_formed_and_shows_every_metered_arm_at_the_usual_ghosts() -> None:
    text = drawn(layers())
    root = ElementTree.fromstring(text)
    words = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert [word for word in words if word in ("phantom", "tensor column/row", "low-rank")] == [
        "tensor column/row",
        "phantom",
    ]
    assert any(word.startswith("0.29  (5.80 J") for word in words)
    assert "4 x Board" in text


@pytest.mark.skipif(not (RESULTS / "layers.json").exists(), reason="not measured yet")
def test_the_stored_figure_is_that_of_the_stored_result() -> None:
    expected = drawn(json.loads((RESULTS / "layers.json").read_text()))
    assert (RESULTS / "layers.svg").read_text() == expected, "run python -m benchmarks.figure"


def test_predictions_are_compared_with_measured_steps_and_their_errors_kept_in_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.json").write_text(json.dumps(layers()))
    profile = round_profile(
        gemms=tuple(fit.model_copy(update={"arithmetic": "bfloat16"}) for fit in round_profile().gemms)
    )
    links = tuple(link.model_copy(update={"world_size": 4}) for link in profile.links)
    (tmp_path / "profile.json").write_text(profile.model_copy(update={"links": links}).model_dump_json())
    paths = [f"--{name}={tmp_path}/{name}.json" for name in ("layers", "profile")]
    monkeypatch.setattr("sys.argv", ["predictions", *paths, f"--out={tmp_path}/predictions.json"])
    predictions.main()
    rows = json.loads((tmp_path / "predictions.json").read_text())["rows"]
    compared = [row for row in rows if row["measured"] == "comparison"]
    assert len(compared) == 5  # the arm that did not fit has no step to compare with
    for row in compared:
        assert row["time_error"] == pytest.approx(row["predicted_ms_per_step"] / row["ms_per_step"] - 1)
    (error,) = [row for row in rows if row["measured"] == "error"]
    assert error["steps"] == 5
    kept = json.loads((tmp_path / "profile.json").read_text())["known_errors"]
    assert kept[0]["median_time_error"] == error["median_time_error"]
    assert "| 4 | 5 |" in quote_layers.predictions(rows)
