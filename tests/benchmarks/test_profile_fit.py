"""A profile is what the rows say."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibrate import RESULTS
from benchmarks.profile_fit import fitted_profile
from benchmarks.step_arms import tiny_dense_arm
from phantom_core.prediction import eager_launch_s
from phantom_core.profile import DeviceProfile, ProfileError, load_profile
from phantom_core.step_work import step_work

Row = dict[str, Any]
PLANNED, DATASET = tiny_dense_arm()
EAGER: Row = {
    "measured": "eager",
    "step_s": 3e-3,
    "model": PLANNED.model.model_dump(mode="json"),
    "training": PLANNED.training.model_dump(mode="json"),
    "shape": DATASET.shape.model_dump(mode="json"),
}


def document(**left_out: bool) -> Row:
    """Rows of a device whose times follow t = 2 us + FLOPs / 1e12 + bytes / 1e11 exactly."""

    def gemm(m: int, n: int, k: int) -> Row:
        seconds = 2e-6 + 2 * m * n * k / 1e12 + 2 * (m * k + k * n + m * n) / 1e11
        sizes = {"rows": m, "columns": n, "inner": k}
        return {"measured": "gemm", "arithmetic": "bfloat16", **sizes, "seconds": seconds}

    wide = [gemm(m, n, k) for m in (512, 2048) for n in (1024, 4096) for k in (512, 8192)]
    thin = [gemm(m, 1024, k) for m in (8, 64) for k in (1024, 4096)]
    powers = [
        {"measured": "power", "load": load, "power_w": watts, "method": "nvml.counter", "reason": None}
        | rates
        for load, watts, rates in (
            ("idle", 80.0, {}),
            ("active", 120.0, {}),
            ("gemm", 650.0, {"flops_per_s": 7e14}),
            ("memory", 400.0, {"bytes_per_s": 3e12}),
            ("communication", 250.0, {"bytes_sent_per_s": 3e11}),
        )
    ]
    rows: list[Row] = [
        {"measured": "setting", "device": "none", "world_size": 2, "in_graph": True},
        *powers,
        *wide,
        *thin,
        *({"measured": "elementwise", "bytes": size, "seconds": size / 1e12} for size in (2_000, 1_000)),
        {"measured": "update", "bytes": 10**9, "seconds": 1e-3},
        EAGER,
        *(
            {
                "measured": "collective",
                "kind": "all_gather",
                "transport": "fused",
                "world_size": 2,
                "bytes_sent": size,
                "seconds": size * 1e-9,
            }
            for size in (3_000, 1_000)
        ),
    ]
    kept = [row for row in rows if not left_out.get(row["measured"])]
    return {
        "card": "Board",
        "cards": 2,
        "driver": "1",
        "torch": "2.11",
        "date": "2026-01-02T03:04:05+00:00",
        "command": "none",
        "rows": kept,
    }


def test_gemms_that_follow_the_formula_are_fitted_exactly() -> None:
    profile = fitted_profile(document())
    assert [(fit.thin, fit.shapes) for fit in profile.gemms] == [(False, 8), (True, 4)]
    for fit in profile.gemms:
        assert fit.worst_error < 1e-6
        assert fit.overhead_s == pytest.approx(2e-6)
        assert fit.s_per_flop == pytest.approx(1e-12)
        assert fit.s_per_byte == pytest.approx(1e-11)


def test_curves_are_in_order_and_powers_those_of_the_loads() -> None:
    profile = fitted_profile(document())
    assert profile.name == "2 x Board, 2026-01-02"
    assert profile.elementwise.points == ((1_000, 1e-9), (2_000, 2e-9))
    assert profile.link("all_gather", "fused", 2).points[0][0] == 1_000
    assert profile.update_bytes_per_s == 1e12
    assert (profile.powers.idle_w, profile.powers.gemm_flops_per_s) == (80.0, 7e14)


def test_seconds_per_launch_are_told_by_the_formula_that_predicts() -> None:
    launches = step_work(PLANNED, DATASET.shape, DATASET.placement).launches()
    assert eager_launch_s(fitted_profile(document())) == pytest.approx(3e-3 / launches)


def test_an_eager_row_that_names_no_network_gives_no_profile() -> None:
    named = document()
    named["rows"] = [
        row if row["measured"] != "eager" else {"measured": "eager", "step_s": 3e-3} for row in named["rows"]
    ]
    with pytest.raises(ProfileError, match="no model, training, shape"):
        fitted_profile(named)


def test_a_profile_from_before_the_step_was_told_can_be_read(tmp_path: Path) -> None:
    old = fitted_profile(document()).model_dump(mode="json", exclude={"eager"}) | {"eager_launch_s": 1e-5}
    (tmp_path / "profile.json").write_text(json.dumps(old))
    assert eager_launch_s(load_profile(tmp_path / "profile.json")) == 1e-5
    with pytest.raises(ValueError, match="either the eager step"):
        DeviceProfile.model_validate(old | {"eager_launch_s": None})


@pytest.mark.parametrize("name", ["", "_h100", "_h200"])
def test_stored_profiles_are_those_of_the_stored_rows(name: str) -> None:
    fitted = fitted_profile(json.loads((RESULTS / f"calibrate{name}.json").read_text()))
    stored = load_profile(RESULTS / f"profile{name}.json")
    told = {"gemms", "known_errors", "compared"}  # fitted to the last digits anew; told later
    assert stored.model_dump(exclude=told) == fitted.model_dump(exclude=told)
    for one, other in zip(stored.gemms, fitted.gemms, strict=True):
        assert one.model_dump() == pytest.approx(other.model_dump())


def test_a_calibration_that_was_cut_off_gives_no_profile() -> None:
    with pytest.raises(ProfileError, match="cut off"):
        fitted_profile(document(eager=True))


def test_a_load_without_energy_gives_no_profile() -> None:
    cut = document()
    next(row for row in cut["rows"] if row.get("load") == "gemm").update(power_w=None, reason="no counter")
    with pytest.raises(ProfileError, match=r"no power of gemm .*no counter"):
        fitted_profile(cut)
