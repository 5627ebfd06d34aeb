"""Assignments: what is left to be made, in order, numbered for this attempt; the same whenever it is asked."""

from pathlib import Path

import pytest

from phantom_core.plan import make_plan, schedule
from services import assignments, experiments, leases
from services.database import Database
from services.errors import NotFound
from tests.services.simulated_job import begun, deliver, spec


def test_the_first_assignment_is_the_whole_schedule(database: Database) -> None:
    identifier, _, job = begun(database)
    plan = make_plan(spec())
    assert job.assignment.experiment_id == identifier
    assert job.assignment.plan == plan
    assert [(run.round, run.position, run.arm, run.seed) for run in job.assignment.runs] == [
        (run.round, run.position, run.arm, run.seed) for run in schedule(plan)
    ]
    assert {run.attempt for run in job.assignment.runs} == {1}


def test_asking_again_gives_the_same_less_what_has_ended(database: Database) -> None:
    identifier, _, job = begun(database)
    assert assignments.assignment(database, identifier) == job.assignment
    deliver(database, job, [*job.started(), *job.run(job.assignment.runs[0])])
    again = assignments.assignment(database, identifier)
    assert again.runs == job.assignment.runs[1:]


def test_data_roots_travel_along(database: Database) -> None:
    identifier, _, _ = begun(database)
    told = assignments.assignment(database, identifier, [Path("/data"), Path("/more")])
    assert told.data_roots == ("/data", "/more")


def test_the_stored_plan_is_assigned_even_if_a_new_version_would_make_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier, _, job = begun(database)

    def other(*_arguments: object) -> object:
        raise AssertionError("the plan must not be made again")

    monkeypatch.setattr("phantom_core.plan.make_plan", other)
    assert assignments.assignment(database, identifier).plan == job.assignment.plan


def test_there_is_nothing_to_do_before_an_attempt_began(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    with pytest.raises(NotFound):
        assignments.assignment(database, identifier)
    with pytest.raises(NotFound):
        assignments.assignment(database, "exp-nothing")
    assert leases.claim(database, "a", 60) is not None
    with pytest.raises(NotFound):
        assignments.assignment(database, identifier)
