"""A plan is decided by the spec alone: resolved arms, controls, baseline, order of runs, seeds."""

from collections import Counter

import pytest

from phantom_core.plan import Plan, derived_seed, make_plan, resolve, schedule
from phantom_core.spec import (
    BlockDiagonalArm,
    DenseArm,
    MeasurementSpec,
    ModelOverrides,
    PhantomArm,
    Schedule,
    TensorArm,
    TrainingOverrides,
)
from tests.phantom_core.arms import experiment

PHANTOM = PhantomArm(name="p", world_size=4, ghosts=16)


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    arm = TensorArm(
        name="t",
        model=ModelOverrides(width=48, bias=False),
        training=TrainingOverrides(learning_rate=0.5, schedule=Schedule(kind="cosine")),
    )
    spec = experiment(arm, width=12, depth=3)
    planned = resolve(spec, arm)
    assert planned.model == spec.model.model_copy(update={"width": 48, "bias": False})
    assert planned.training == spec.training.model_copy(
        update={"learning_rate": 0.5, "schedule": Schedule(kind="cosine")}
    )


def test_an_arm_without_overrides_is_the_experiment_s_model_and_recipe() -> None:
    spec = experiment(DenseArm(name="d"))
    planned = resolve(spec, spec.arms[0])
    assert (planned.model, planned.training) == (spec.model, spec.training)


@pytest.mark.parametrize(
    ("arms", "baseline"),
    [
        ([DenseArm(name="d"), PHANTOM], "d"),
        ([PHANTOM, TensorArm(name="g", form="gather")], "g"),
        ([TensorArm(name="g", form="gather"), TensorArm(name="c"), TensorArm(name="c2")], "c"),
    ],
)
def test_the_stronger_tensor_arm_is_the_baseline_unless_told(arms: list[TensorArm], baseline: str) -> None:
    assert make_plan(experiment(*arms, controls=False)).baseline == baseline
    told = make_plan(experiment(*arms, controls=False, baseline=arms[-1].name))
    assert told.baseline == arms[-1].name


def test_a_control_can_become_the_baseline() -> None:
    plan = make_plan(experiment(PHANTOM, width=1024))
    assert plan.baseline == "tensor n=1024"


def test_the_plan_survives_json_and_is_the_same_each_time() -> None:
    spec = experiment(PHANTOM, TensorArm(name="t", world_size=2), width=1024)
    plan = make_plan(spec)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert make_plan(spec) == plan
    assert plan.world_size == 4
    assert plan.arm("p").arm == PHANTOM
    with pytest.raises(KeyError):
        plan.arm("nobody")


def test_every_round_runs_every_arm_once_in_its_own_order_with_one_seed() -> None:
    arms = [BlockDiagonalArm(name=f"b{index}") for index in range(6)]
    plan = make_plan(experiment(*arms, measurement=MeasurementSpec(rounds=8, seed=3)))
    runs = schedule(plan)
    assert runs == schedule(plan)
    orders, seeds = [], []
    for number in range(8):
        own = [run for run in runs if run.round == number]
        assert [run.position for run in own] == list(range(6))
        assert Counter(run.arm for run in own) == Counter(arm.name for arm in arms)
        assert len({run.seed for run in own}) == 1
        orders.append(tuple(run.arm for run in own))
        seeds.append(own[0].seed)
    assert len(set(orders)) > 5, "arms are not shuffled"
    assert len(set(seeds)) == 8
    other = schedule(make_plan(experiment(*arms, measurement=MeasurementSpec(rounds=8, seed=4))))
    assert [run.arm for run in other] != [run.arm for run in runs]
    assert {run.seed for run in other}.isdisjoint(seeds)


def test_the_first_place_in_a_round_is_shared_fairly() -> None:
    arms = [BlockDiagonalArm(name=f"b{index}") for index in range(4)]
    runs = schedule(make_plan(experiment(*arms, measurement=MeasurementSpec(rounds=400))))
    first = Counter(run.arm for run in runs if run.position == 0)
    assert all(70 <= first[arm.name] <= 130 for arm in arms), first


def test_derived_seeds_differ_by_purpose_and_numbers_and_fit_31_bits() -> None:
    seeds = {derived_seed(s, purpose, n) for s in (0, 1) for purpose in ("order", "run") for n in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seed(0, "run", 1) == derived_seed(0, "run", 1)
    assert derived_seed(1, "run", 1) != derived_seed(11, "run"), "numbers must not run into each other"
