"""Predictions follow their formulas, and say what they are made from."""

import subprocess
import sys
from pathlib import Path

import pytest

from phantom_core.layer_costs import MOST_FUSED_BYTES, Collective
from phantom_core.layer_segments import Gemm, Segment, Transfer
from phantom_core.plan import PlannedArm
from phantom_core.prediction import Ceilings, Predictor, floor, predict
from phantom_core.profile import Curve, KnownError, ProfileError, load_profile
from phantom_core.spec import (
    BlockDiagonalArm,
    ModelSpec,
    PhantomArm,
    StopAtSteps,
    TensorArm,
    TrainingSpec,
)
from phantom_core.step_work import StepWork
from phantom_core.task_shapes import TaskShape
from tests.phantom_core.profiles import round_profile

SHAPE = TaskShape(features=64, outputs=4, loss="mean_squared_error")


def planned(arm: TensorArm | PhantomArm | BlockDiagonalArm) -> PlannedArm:
    return PlannedArm(
        arm=arm,
        model=ModelSpec(width=1024, depth=4, bias=False),
        training=TrainingSpec(batch_size=256, optimizer="sgd", stop=StopAtSteps(steps=1)),
    )


def work(*segments: Segment, update_bytes: int = 0) -> StepWork:
    return StepWork(segments, 4, "float32", parameters=0, update_bytes=update_bytes, world_size=2)


def test_a_transfer_beside_a_gemm_costs_only_what_sticks_out() -> None:
    gemm = Gemm(1000, 1000, 1000)  # 2 GFLOP: 2 ms and 1 us
    small = Transfer("all_gather", 2)
    large = Transfer("all_gather", 2 * 10**9)
    predictor = Predictor(round_profile())
    hidden = predictor.step(work(Segment("forward", (gemm,), small)))
    assert hidden.exposed_s == 0
    assert hidden.gemm_s == pytest.approx(2.001e-3)
    sticking_out = predictor.step(work(Segment("forward", (gemm,), large)))
    # 4 GB sent at 1 us per MB, after 10 us.
    assert sticking_out.exposed_s == pytest.approx(1e-5 + 4e-3 - 2.001e-3)
    alone = predictor.step(work(Segment("forward", (gemm,)), Segment("forward", transfer=large)))
    assert alone.exposed_s == pytest.approx(1e-5 + 4e-3)


@pytest.mark.parametrize(
    ("kind", "elements", "fusable", "fused"),
    [
        ("all_reduce", 2 * MOST_FUSED_BYTES // 4, True, True),
        ("all_reduce", 2 * MOST_FUSED_BYTES // 4 + 1, True, False),
        ("all_gather", 2 * MOST_FUSED_BYTES // 4, True, True),
        ("all_gather", 2 * MOST_FUSED_BYTES // 4 + 2, True, False),
        ("all_reduce", 2, False, False),
    ],
)
def test_what_the_fused_exchange_carries_is_predicted_by_it(
    kind: Collective, elements: int, fusable: bool, fused: bool
) -> None:
    profile = round_profile()
    slow = tuple(
        link if link.transport == "fused" else link.model_copy(update={"points": ((0, 1.0),)})
        for link in profile.links
    )
    step = work(Segment("forward", transfer=Transfer(kind, elements, fusable)))
    assert (Predictor(round_profile(links=slow)).step(step).exposed_s < 1) == fused
    assert Predictor(round_profile(links=slow), small_transport="nccl").step(step).exposed_s == 1
    # Of a profile that knows no fused exchange of this kind.
    others = tuple(link for link in slow if (link.kind, link.transport) != (kind, "fused"))
    assert Predictor(round_profile(links=others)).step(step).exposed_s == 1


def test_passes_hide_no_transfer() -> None:
    predictor = Predictor(round_profile())
    transfer = Transfer("all_gather", 2 * 10**9)
    passes = (10**9,)  # 4 GB: 1 us per MB, longer than the transfer
    together = predictor.step(work(Segment("backward", transfer=transfer, passes_elements=passes)))
    assert together.exposed_s == pytest.approx(1e-5 + 4e-3)
    assert together.step_s > together.exposed_s + 4e-3


def test_energy_is_rest_power_over_the_step_and_joules_per_unit_of_work() -> None:
    found = Predictor(round_profile()).step(
        work(Segment("forward", (Gemm(1000, 1000, 1000),)), update_bytes=10**9)
    )
    flops_j = 2e9 * (500 - 100) / 1e12
    operands_j = 4 * 3e6 * (300 - 100) / 1e12
    update_j = 1e9 * (300 - 100) / 1e12
    assert found.update_s == pytest.approx(1e-3)
    assert found.energy_j == pytest.approx(2 * (100 * found.step_s + flops_j + operands_j + update_j))


def test_the_power_of_large_gemms_is_shared_between_flops_and_operands() -> None:
    powers = round_profile().powers.model_copy(update={"gemm_bytes_per_s": 5e11})
    found = Predictor(round_profile(powers=powers)).step(work(Segment("forward", (Gemm(1000, 1000, 1000),))))
    # 5e11 of 1e12 bytes/s take half of the copy's 200 W; the rest is arithmetic's.
    flops_j = 2e9 * (500 - 100 - 100) / 1e12
    operands_j = 4 * 3e6 * (300 - 100) / 1e12
    assert found.energy_j == pytest.approx(2 * (100 * found.step_s + flops_j + operands_j))


def test_an_eager_step_is_as_long_as_its_launches_take() -> None:
    arm = planned(BlockDiagonalArm(name="block", world_size=2))
    slow_host = round_profile(eager_launch_s=1.0)
    graph = predict(arm, SHAPE, "split", slow_host)
    eager = predict(arm, SHAPE, "split", slow_host, mode="eager")
    assert graph.waiting_s == 0
    assert graph.limit == "device"
    assert eager.step_s == pytest.approx(eager.launches * 1.0)
    assert eager.waiting_s == pytest.approx(eager.step_s - graph.step_s)
    assert eager.limit == "host"


def test_a_step_is_never_so_short_that_it_breaks_the_power_limit() -> None:
    profile = round_profile()
    profile = profile.model_copy(update={"powers": profile.powers.model_copy(update={"limit_w": 300.0})})
    found = Predictor(profile).step(work(Segment("forward", (Gemm(1000, 1000, 1000),))))
    # 2 GFLOP at 400 W per TFLOP/s beyond active power are 0.8 J, 12 MB of operands at 200 W per TB/s 2.4 mJ; 200 W are
    # left for them.
    assert found.step_s == pytest.approx((0.8 + 0.0024) / 200)
    assert found.limit == "power"
    assert found.energy_j / 2 / found.step_s == pytest.approx(300.0)


def test_phantom_is_predicted_cheaper_than_tensor_of_its_width() -> None:
    profile = round_profile()
    phantom = predict(planned(PhantomArm(name="p", ghosts=16, world_size=2)), SHAPE, "split", profile)
    tensor = predict(planned(TensorArm(name="t", world_size=2)), SHAPE, "split", profile)
    assert phantom.step_s < tensor.step_s
    assert phantom.energy_j < tensor.energy_j
    assert phantom.floor.step_s <= phantom.step_s


def test_the_floor_is_the_largest_of_the_rooflines() -> None:
    step = work(Segment("forward", (Gemm(1000, 1000, 1000),), Transfer("all_gather", 2 * 10**6)))
    # 2 GFLOP at 1 GFLOP/s; 4 MB sent at 1 MB/s.
    least = floor(step, Ceilings(1e9, 1e12, 1e6))
    assert (least.gemm_s, least.link_s, least.bound, least.step_s) == (2.0, 4.0, "link", 4.0)
    assert floor(step, Ceilings(1e9, 1e12, None)).bound == "gemm"


def test_every_prediction_names_its_profile_and_the_error_known_so_far() -> None:
    arm = planned(TensorArm(name="t", world_size=2))
    assert "not yet compared" in predict(arm, SHAPE, "split", round_profile()).label
    error = KnownError(
        world_size=2,
        steps=8,
        median_time_error=0.07,
        worst_time_error=0.2,
        median_energy_error=0.1,
        worst_energy_error=0.3,
    )
    label = predict(arm, SHAPE, "split", round_profile(known_errors=(error,))).label
    assert "estimate from profile round" in label
    assert "ms 7 %, J 10 %" in label


def test_a_world_size_that_was_not_measured_has_no_prediction() -> None:
    arm = planned(TensorArm(name="t", world_size=4))
    with pytest.raises(ProfileError, match=r"over 4 ranks \(measured: \[2\]\)"):
        predict(arm, SHAPE, "split", round_profile())


def test_an_arithmetic_that_was_not_measured_has_no_prediction() -> None:
    arm = planned(TensorArm(name="t", world_size=2))
    arm = arm.model_copy(update={"model": arm.model.model_copy(update={"tf32": True})})
    with pytest.raises(ProfileError, match="--arithmetic tf32"):
        predict(arm, SHAPE, "split", round_profile())


def test_a_curve_goes_through_its_points_and_on_beyond_them() -> None:
    curve = Curve(points=((100, 1.0), (200, 3.0), (400, 4.0)))
    assert [curve.seconds(size) for size in (0, 100, 150, 300, 600)] == [1.0, 1.0, 2.0, 3.5, 5.0]


def test_a_file_that_holds_no_profile_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ProfileError, match=r"benchmarks\.calibrate"):
        load_profile(path)
    path.write_text(round_profile().model_dump_json())
    assert load_profile(path) == round_profile()


def test_predicting_loads_no_torch() -> None:
    program = "import sys, phantom_core.prediction; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_memory_s_ceiling_is_the_optimizer_s_pass_where_a_copy_is_slower() -> None:
    profile = round_profile()
    assert Ceilings.of(profile).memory_bytes_per_s == 1e12
    assert Ceilings.of(profile.model_copy(update={"update_bytes_per_s": 4e12})).memory_bytes_per_s == 4e12
    slow = profile.model_copy(update={"update_bytes_per_s": 1e11})
    assert Ceilings.of(slow).memory_bytes_per_s == profile.powers.memory_bytes_per_s
