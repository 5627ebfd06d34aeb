"""Controls have the width or the weights they are named for, exist once, and say so when they can't."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantom_core.controls import MATCH_TOLERANCE, matched_width
from phantom_core.cost import arm_parameters
from phantom_core.plan import Plan, PlannedArm, make_plan
from phantom_core.spec import (
    BlockDiagonalArm,
    ExperimentSpec,
    LowRankArm,
    ModelOverrides,
    PhantomArm,
    TensorArm,
    TrainingOverrides,
)
from phantom_core.task_shapes import task_shape
from tests.phantom_core.arms import experiment

PHANTOM = PhantomArm(name="p", world_size=4, ghosts=16)


def controls(spec: ExperimentSpec) -> list[PlannedArm]:
    return [planned for planned in make_plan(spec).arms if planned.control_of]


def parameters(planned: PlannedArm, spec: ExperimentSpec) -> int:
    return arm_parameters(planned.arm, planned.model, task_shape(spec.task), spec.task.feature_placement)


def test_a_phantom_arm_gets_its_four_controls() -> None:
    spec = experiment(PHANTOM, width=1024)
    made = controls(spec)
    assert [type(planned.arm) for planned in made] == [TensorArm, BlockDiagonalArm, LowRankArm, TensorArm]
    assert {planned.control_of for planned in made} == {("p",)}
    assert {planned.arm.world_size for planned in made} == {4}
    assert [planned.model.width for planned in made[:3]] == [1024] * 3
    assert made[3].model.width < 1024
    assert len({planned.name for planned in made}) == 4


@pytest.mark.parametrize("placement", ["whole", "split"])
@given(m=st.integers(16, 64).map(lambda eighths: 8 * eighths), p=st.sampled_from([2, 4, 8]), data=st.data())
def test_matched_controls_have_as_many_weights(placement: Any, m: int, p: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, m - 1))
    phantom = PhantomArm(name="p", world_size=p, ghosts=k)
    spec = experiment(phantom, width=m * p, depth=3, features=64, feature_placement=placement)
    wanted = parameters(make_plan(spec).arm("p"), spec)
    plan = make_plan(spec)
    for planned in plan.arms:
        if planned.name.endswith("weights-matched"):
            assert planned.model.width % p == planned.model.width % 8 == 0
            assert abs(parameters(planned, spec) - wanted) <= MATCH_TOLERANCE * wanted
        if isinstance(planned.arm, LowRankArm):
            # The rank is a whole number: half of one is 2 n 3 (layers) / 2 weights.
            assert abs(parameters(planned, spec) - wanted) <= 3 * planned.model.width
    matched = [planned for planned in plan.arms if isinstance(planned.arm, TensorArm)]
    # Of the same width and of the same weights, or a problem; at k = m (1 - 1/p) one arm is both.
    assert len(matched) + len(plan.control_problems) == 2 or matched[0].model.width == m * p


@given(n=st.integers(2, 200).map(lambda quarter: 4 * quarter), k=st.integers(1, 8))
def test_the_matched_width_is_the_nearest_there_is(n: int, k: int) -> None:
    phantom = PhantomArm(name="p", world_size=4, ghosts=k)
    spec = experiment(phantom, width=n, controls=False)
    plan = make_plan(spec)
    wanted = parameters(plan.arm("p"), spec)

    def distance(width: int) -> int:
        model = plan.arm("p").model.model_copy(update={"width": width})
        tensor = TensorArm(name="t", world_size=4)
        return abs(arm_parameters(tensor, model, task_shape(spec.task), spec.task.feature_placement) - wanted)

    nearest = min(range(8, 2 * n + 17, 8), key=distance)
    found = matched_width(phantom, plan.arm("p").model, spec)
    if distance(nearest) <= MATCH_TOLERANCE * wanted:
        assert found is not None
        assert distance(found) == distance(nearest)
    else:
        assert found is None


def test_a_control_that_can_t_be_matched_is_a_problem_with_a_way_out_that_works() -> None:
    spec = experiment(PhantomArm(name="p", world_size=4, ghosts=2), width=32)
    (problem,) = make_plan(spec).control_problems
    assert (problem.arm, problem.control) == ("p", "parameter-matched tensor")
    assert "within 1%" in problem.message
    ways = re.findall(r"(ghosts|width) = (\d+)", problem.message.split(";")[1])
    assert [name for name, _ in ways] == ["ghosts", "width"]
    for name, number in ways:
        ghosts, width = (int(number), 32) if name == "ghosts" else (2, int(number))
        better = experiment(PhantomArm(name="p", world_size=4, ghosts=ghosts), width=width)
        assert not make_plan(better).control_problems, (name, number)


def test_controls_that_exist_already_are_not_made_again() -> None:
    own = TensorArm(name="mine", world_size=4)
    made = controls(experiment(PHANTOM, own, BlockDiagonalArm(name="blocks", world_size=4), width=1024))
    assert [planned.arm.strategy for planned in made] == ["low_rank", "tensor"]
    gather = TensorArm(name="mine", world_size=4, form="gather")
    assert len(controls(experiment(PHANTOM, gather, width=1024))) == 4, "another form is another arm"


def test_an_arm_whose_override_says_what_the_experiment_says_anyway_is_the_same_arm() -> None:
    same = TensorArm(
        name="mine",
        world_size=4,
        model=ModelOverrides(width=1024),
        training=TrainingOverrides(batch_size=5),
    )
    assert len(controls(experiment(PHANTOM, same, width=1024, batch_size=5))) == 3


def test_two_phantom_arms_share_controls_and_names_stay_unique() -> None:
    other = PHANTOM.model_copy(update={"name": "q", "ghosts": 32})
    taken = PHANTOM.model_copy(update={"name": "tensor n=1024", "ghosts": 48})
    made = controls(experiment(PHANTOM, other, taken, width=1024))
    shared = [planned for planned in made if len(planned.control_of) == 3]
    assert [type(planned.arm) for planned in shared] == [TensorArm, BlockDiagonalArm]
    assert shared[0].name == "tensor n=1024 2"
    names = [planned.name for planned in made]
    assert len(set(names)) == len(names)


def test_a_matched_width_that_is_the_same_width_is_one_arm_named_once() -> None:
    """At k = m (1 - 1/p) a phantom arm has as many weights as tensor parallelism of its own width."""
    phantom = PhantomArm(name="p", world_size=4, ghosts=192)
    made = controls(experiment(phantom, width=1024))
    tensors = [planned for planned in made if isinstance(planned.arm, TensorArm)]
    assert [planned.control_of for planned in tensors] == [("p",)]


def test_controls_follow_the_phantom_arm_s_overrides() -> None:
    phantom = PHANTOM.model_copy(
        update={
            "model": ModelOverrides(width=2048, depth=1),
            "training": TrainingOverrides(learning_rate=0.5),
        }
    )
    for planned in controls(experiment(phantom, width=1024)):
        assert planned.model.depth == 1
        assert planned.training.learning_rate == 0.5
        assert planned.model.width == 2048 or planned.name.endswith("weights-matched")


@pytest.mark.parametrize(
    "phantom",
    [
        PhantomArm(name="alone", world_size=1, ghosts=4),
        PhantomArm(name="indivisible", world_size=3, ghosts=4),
        PhantomArm(name="too many", world_size=4, ghosts=256),
    ],
)
def test_arms_without_anything_to_control_for_get_none(phantom: PhantomArm) -> None:
    plan = make_plan(experiment(phantom, width=1024))
    assert len(plan.arms) == 1
    assert not plan.control_problems


def test_controls_can_be_switched_off() -> None:
    assert not controls(experiment(PHANTOM, width=1024, controls=False))


def test_no_control_and_no_way_out_is_wider_than_a_spec_may_be() -> None:
    """With k near m a phantom arm has more weights than tensor parallelism of its width."""
    phantom = PhantomArm(name="p", world_size=4, ghosts=262_143)
    plan = make_plan(experiment(phantom, width=1_048_576))
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert all(planned.model.width <= 1_048_576 for planned in plan.arms)
    (problem,) = plan.control_problems
    assert "width = 1048576" in problem.message
    assert re.findall(r"ghosts = (\d+) can be matched", problem.message)


def test_the_widest_model_is_matched_at_once() -> None:
    spec = experiment(PhantomArm(name="p", world_size=4096, ghosts=16), width=1_048_576)
    assert controls(spec)[-1].name.endswith("weights-matched")
