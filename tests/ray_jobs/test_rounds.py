"""Whether a job makes another round, with what earlier starts of it have made."""

from phantom_core.plan import make_plan, schedule
from phantom_core.protocol import AssignedRun, Assignment, MadeRun
from ray_jobs.rounds import Rounds
from tests.services.simulated_job import spec

RATIOS = (0.70, 0.701, 0.699, 0.7005, 0.6995, 0.7)


def assignment(rounds: int | str = "auto", first_round: int = 0, made: int = 0) -> Assignment:
    """Rounds from `first_round` on, after others in which the phantom arm saved 30 %."""
    plan = make_plan(spec(measurement={"rounds": rounds, "max_rounds": 8}))
    runs = [
        AssignedRun(
            run_id=f"run-{run.round}-{run.arm}",
            attempt=1,
            round=run.round,
            position=run.position,
            arm=run.arm,
            seed=run.seed,
        )
        for run in schedule(plan)
        if run.round >= first_round
    ]
    before = [
        MadeRun(round=number, arm=arm, figure=figure)
        for number in range(made)
        for arm, figure in (("tensor", 1_000.0), ("phantom", 1_000.0 * RATIOS[number]))
    ]
    return Assignment(experiment_id="exp-1", attempt=1, plan=plan, runs=tuple(runs), made=tuple(before))


def make_until_enough(told: Assignment) -> int:
    """Rounds that are made of an assignment by a job whose phantom arm saves 30 %."""
    rounds = Rounds(told)
    for run in told.runs:
        if rounds.begins_with(run) and rounds.enough(run.round) is not None:
            return run.round
        rounds.note(run, 1_000.0 * (RATIOS[run.round % 6] if run.arm == "phantom" else 1.0))
    return told.plan.spec.measurement.rounds_planned


def test_a_job_makes_no_more_rounds_than_it_needs() -> None:
    assert make_until_enough(assignment()) == 5
    assert make_until_enough(assignment(rounds=7)) == 7


def test_a_second_start_counts_the_rounds_of_the_first() -> None:
    assert make_until_enough(assignment(first_round=4, made=4)) == 5
    assert make_until_enough(assignment(first_round=5, made=5)) == 5


def test_a_start_in_the_middle_of_a_round_finishes_it_first() -> None:
    told = assignment(first_round=4, made=4)
    left = told.model_copy(update={"runs": told.runs[1:]})
    rounds = Rounds(left)
    assert rounds.begins_with(left.runs[0])
    assert rounds.enough(left.runs[0].round) is None
    assert not rounds.begins_with(told.runs[0])


def test_runs_without_a_figure_make_no_pair() -> None:
    told = assignment()
    rounds = Rounds(told)
    for run in told.runs[:10]:
        rounds.note(run, None if run.arm == "phantom" else 1_000.0)
    enough = rounds.enough(5)
    assert enough is not None
    assert not enough.is_precise
