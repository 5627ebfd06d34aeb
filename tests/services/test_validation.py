"""Validation: what a spec would need and cost, without running it."""

import pytest

from phantom_core.checks import Capacity
from phantom_core.cost import arm_cost
from phantom_core.plan import make_plan
from phantom_core.task_shapes import task_shape
from services.validation import NO_PROFILE, validate
from tests.services.simulated_job import spec

PHANTOM = [
    {"strategy": "tensor", "name": "tensor", "world_size": 2},
    {"strategy": "phantom", "name": "phantom", "world_size": 2, "ghosts": 6},
]


def test_a_sound_spec_gets_its_plan_and_costs() -> None:
    submitted = spec(arms=PHANTOM, controls=True)
    view = validate(submitted)
    plan = make_plan(submitted)
    assert (view.valid, view.problems) == (True, ())
    assert [arm.arm for arm in view.arms] == [planned.name for planned in plan.arms]
    assert (view.rounds, view.runs, view.ranks) == (3, 3 * len(plan.arms), 2)
    assert view.baseline == "tensor"
    assert {arm.control_of for arm in view.arms[2:]} == {("phantom",)}
    tensor, phantom = view.arms[:2]
    assert phantom.parameters < tensor.parameters
    assert phantom.bytes_sent_per_step < tensor.bytes_sent_per_step
    assert all(arm.memory_per_rank_bytes > 0 for arm in view.arms)


def test_energy_is_not_predicted_without_a_profile() -> None:
    view = validate(spec())
    assert (view.predicted_energy_mj, view.predicted_energy_reason) == (None, NO_PROFILE)
    assert {(arm.energy_per_step_mj, arm.energy_reason) for arm in view.arms} == {(None, NO_PROFILE)}


def test_problems_are_told_with_field_value_limit_and_way_out() -> None:
    view = validate(spec(model={"width": 65}))
    assert (view.valid, view.arms) == (False, ())
    assert {problem.field for problem in view.problems} == {"model.width"}
    problem = view.problems[0]
    assert (problem.value, problem.limit) == ("65", "2")
    assert "64" in problem.message
    assert "66" in problem.message


def test_warnings_do_not_forbid() -> None:
    view = validate(spec(measurement={"rounds": 1}))
    assert view.valid
    assert [warning.field for warning in view.warnings] == ["measurement.rounds"]


def test_the_cluster_is_asked_where_it_is_known() -> None:
    assert validate(spec()).valid
    view = validate(spec(), Capacity(cpus=1, gpus=0))
    assert not view.valid
    assert "needs 2 ranks" in view.problems[0].message


def test_memory_is_that_of_the_device_on_which_the_arms_will_run() -> None:
    """bfloat16 weights have float32 gradients beside their masters where no kernel of a GPU does without."""

    def memory(device: str, capacity: Capacity | None, dtype: str = "bfloat16") -> int:
        asked = spec(model={"width": 64, "dtype": dtype}, resources={"device": device})
        return validate(asked, capacity).arms[0].memory_per_rank_bytes

    def gpus(has_triton: bool | None) -> Capacity:
        return Capacity(cpus=8, gpus=8, has_triton=has_triton)

    least, most = memory("cuda", gpus(True)), memory("cpu", gpus(True))
    planned = make_plan(spec()).arms[0]
    assert most - least == 4 * arm_cost(planned, task_shape(spec().task), "whole").parameters_per_rank
    assert memory("auto", gpus(True)) == least
    assert memory("auto", Capacity(cpus=8, gpus=0)) == memory("cuda", gpus(False)) == most
    assert memory("auto", None) == memory("cuda", gpus(None)) == most, "nobody is promised too little"
    assert memory("cpu", None, "float32") == memory("cuda", gpus(True), "float32")


@pytest.mark.parametrize(
    ("stop", "deadline_s", "longest_s"),
    [
        ({"kind": "steps", "steps": 5, "max_seconds": 100}, 10_000, 600),
        ({"kind": "seconds", "seconds": 30, "max_seconds": 100}, 10_000, 180),
        ({"kind": "steps", "steps": 5, "max_seconds": 100}, 150, 150),
    ],
)
def test_the_longest_training_follows_from_the_hard_limits(
    stop: dict[str, object], deadline_s: float, longest_s: float
) -> None:
    view = validate(spec(training={"stop": stop}, resources={"deadline_s": deadline_s}))
    assert view.longest_s == longest_s


def test_an_experiment_has_a_limit_of_runs() -> None:
    arms = [{"strategy": "dense", "name": f"dense {number}"} for number in range(32)]
    view = validate(spec(arms=arms, measurement={"rounds": 1_000}))
    assert [(problem.field, problem.limit) for problem in view.problems] == [("measurement.rounds", "312")]
    assert validate(spec(arms=arms, measurement={"rounds": 312})).valid
