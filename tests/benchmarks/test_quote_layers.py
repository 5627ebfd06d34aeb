"""Tables, figure and errors of training steps say what the result files say."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import predictions, quote_layers, quote_parts
from benchmarks.attribution import with_gaps_j
from benchmarks.figure import RESULTS, drawn
from benchmarks.layer_rows import summarise
from benchmarks.memory_rate import MEMORY_BURST
from benchmarks.quote import TABLES, of_all_commands, origin
from phantom_core.profile import Compared, DeviceProfile, known_errors, load_profile
from tests.benchmarks.layer_results import HEAD, arm, layers
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


def attributed(**changes: Any) -> dict[str, Any]:
    interval = {"mean": 1.0, "low": 0.9, "high": 1.1}
    row = {
        "n": 4096,
        "depth": 8,
        "k": 64,
        "b": 256,
        "p": 4,
        "arm": "phantom",
        "variants": {"whole": {"ms_per_step": 5.0, "j_per_step": 2.0}},
        "parts": {"optimizer": {"ms": interval, "j": interval}, "communication": {"ms": None, "j": None}},
        "timeline": {"gemm_ms": 2.5, "gaps_ms": 0.25, "kernels": 150.0},
    }
    return row | changes


def test_attribution_shows_intervals_and_what_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "profile_round.json"
    path.write_text(round_profile().model_dump_json())
    row = attributed()
    row["timeline"] = with_gaps_j(row["timeline"], path)
    failed = {"n": 4096, "arm": "tensor", "reasons": {"whole": "too large"}}
    shown = quote_parts.attribution([row, failed])
    # 0.25 ms at 100 W.
    assert (
        "| 4096 | phantom | 5.000 ms, 2.00 J | unknown | 1.000 [0.900, 1.100] ms, 1.00 [0.90, 1.10] J | – | – | "
        f"2.500 ms | 0.250 ms, 0.0250 J (estimate) | {quote_parts.launches(row)}, 150 |"
    ) in shown
    assert (
        "100 W, which a board that is awake and does nothing draws by profile round (`profile_round.json`)"
        in shown
    )
    assert "| 4096 | tensor | not measured: too large |" in shown


def test_attribution_says_why_gaps_or_their_joules_are_unknown(tmp_path: Path) -> None:
    without = attributed()
    without["timeline"] = with_gaps_j(without["timeline"], tmp_path / "none.json")
    cut_off = attributed(timeline={"reason": "the run ended"})
    shown = quote_parts.attribution([without, cut_off])
    assert "| 0.250 ms, J unknown |" in shown
    assert "Gaps' joules are unknown: " in shown
    assert f"| unknown | unknown | {quote_parts.launches(cut_off)}, unknown |" in shown
    assert "Unknown: the run ended." in shown


def test_a_file_that_was_added_to_shows_every_run_s_command_and_ceiling() -> None:
    result = layers()
    burst = {"load": "gemm burst", "flops_per_s": 8e14}
    setting = {"measured": "setting", "command": "the second", "rounds": 3, "ceilings": [burst]}
    result["rows"][0]["command"] = "the first"
    wide = [arm("tensor column/row", 30.0, 80.0, n=32768), arm("phantom", 8.0, 23.0, n=32768)]
    summarise(wide)
    result = result | {"command": "the second", "rows": [*result["rows"], setting, *wide]}
    shown = TABLES["layers.sizes"](result)
    assert "share of 700 TFLOP/s (n = 16384) and 800 TFLOP/s (n = 32768), of large GEMMs" in shown
    assert "`the first`, `the second`" in shown


@pytest.mark.parametrize("path", sorted(RESULTS.glob("attribution*.json")), ids=lambda path: path.stem)
def test_stored_gaps_have_the_joules_of_the_profile_that_they_name(path: Path) -> None:
    for row in json.loads(path.read_text())["rows"]:
        timeline = row["timeline"]
        assert ("gaps_ms" in timeline) != ("reason" in timeline)
        if "gaps_ms" in timeline:
            (name,) = re.findall(r"`(profile\w*\.json)`", timeline["gaps_j_method"])
            again = with_gaps_j(timeline, RESULTS / name)
            assert again["gaps_j"] == pytest.approx(timeline["gaps_j"])
            assert again["gaps_j_method"] == timeline["gaps_j_method"]


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
    assert "| 4 | 5 |" in quote_parts.predictions(rows)


def profile_of(p: int) -> DeviceProfile:
    usual = round_profile()
    return usual.model_copy(
        update={
            "gemms": tuple(fit.model_copy(update={"arithmetic": "bfloat16"}) for fit in usual.gemms),
            "links": tuple(link.model_copy(update={"world_size": p}) for link in usual.links),
        }
    )


def test_files_of_steps_leave_each_other_s_errors_in_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `benchmarks.boards` compares them: layers, then sweeps, whose numbers of ranks are others and the same."""
    (tmp_path / "layers.json").write_text(json.dumps(layers()))
    dense = arm("dense", 9.0, 6.0, p=1)
    slower = arm("phantom", 4.2, 11.6)
    for each in (dense, slower):
        summarise([each])
    (tmp_path / "sweeps.json").write_text(json.dumps(HEAD | {"rows": [dense, slower]}))
    (tmp_path / "profile.json").write_text(profile_of(4).model_dump_json())

    def compare(name: str) -> DeviceProfile:
        files = [f"--layers={tmp_path}/{name}.json", f"--profile={tmp_path}/profile.json"]
        monkeypatch.setattr("sys.argv", ["predictions", *files, f"--out={tmp_path}/predictions_{name}.json"])
        predictions.main()
        return load_profile(tmp_path / "profile.json")

    def steps(profile: DeviceProfile) -> dict[int, int]:
        return {error.world_size: error.steps for error in profile.known_errors}

    first = compare("layers")
    assert steps(first) == {4: 5}
    both = compare("sweeps")
    assert steps(both) == {1: 1, 4: 6}
    assert both.known_errors[1].worst_time_error >= first.known_errors[0].worst_time_error
    assert set(compare("layers").compared) == set(both.compared)
    assert steps(compare("layers")) == {1: 1, 4: 6}
    (tmp_path / "sweeps.json").write_text(json.dumps(HEAD | {"rows": [slower]}))
    assert steps(compare("sweeps")) == {4: 6}


def test_errors_that_name_no_file_stay_until_steps_of_their_ranks_are_compared() -> None:
    old = [
        error.model_copy(update={"steps": 99})
        for error in known_errors([Compared(layers="", world_size=p, time_errors=[0.1]) for p in (2, 4)])
    ]
    profile = round_profile(known_errors=tuple(old))
    new = profile.compared_with(
        "layers.json", [Compared(layers="layers.json", world_size=4, time_errors=[0.2])]
    )
    assert [(error.world_size, error.steps) for error in new.known_errors] == [(2, 99), (4, 1)]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("predictions*.json")), ids=lambda path: path.stem)
def test_stored_predictions_are_today_s(path: Path) -> None:
    """A formula that changes leaves no stale table behind."""
    stored = json.loads(path.read_text())["rows"]
    (source,) = [row for row in stored if row["measured"] == "source"]
    again = f"run python -m benchmarks.predictions --layers {source['layers_file']} --profile {source['profile_file']}"
    document = json.loads((RESULTS / source["layers_file"]).read_text())
    profile = load_profile(RESULTS / source["profile_file"])
    assert (source["layers"], source["profile"]) == (origin(of_all_commands(document)), profile.name), again
    compared = predictions.comparisons(document["rows"], profile)
    told = [row for row in stored if row["measured"] == "comparison"]
    assert len(told) == len(compared), again
    for one, other in zip(told, compared, strict=True):
        assert one == pytest.approx(other), again
    by_ranks = predictions.errors_by_ranks(source["layers_file"], compared)
    kept = [each for each in profile.compared if each.layers == source["layers_file"]]
    assert [each.world_size for each in kept] == [each.world_size for each in by_ranks], again
    for mine, theirs in zip(kept, by_ranks, strict=True):
        for errors in ("time_errors", "energy_errors", "memory_errors"):
            assert getattr(mine, errors) == pytest.approx(getattr(theirs, errors)), again
    shown = [row for row in stored if row["measured"] == "error"]
    known = [error.model_dump() | {"measured": "error"} for error in known_errors(by_ranks)]
    assert len(shown) == len(known), again
    for row, error in zip(shown, known, strict=True):
        assert row == pytest.approx(error), again
    assert list(profile.known_errors) == list(known_errors(profile.compared)), again
