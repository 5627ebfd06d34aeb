"""The state machines: every pair of states is allowed or refused as its table says, by compare-and-set."""

import itertools

import pytest
from sqlalchemy import update

from phantom_core.protocol import Reason
from services import experiments
from services.database import Database
from services.moves import move_experiment, move_run
from services.states import (
    EXPERIMENT_TRANSITIONS,
    LEASED_STATES,
    RUN_TRANSITIONS,
    RUNS_LEFT_BY,
    TERMINAL_RUN_STATES,
    TERMINAL_STATES,
    ExperimentState,
    RunState,
)
from services.tables import Experiment, Run
from tests.services.simulated_job import spec


def test_the_tables_know_every_state_and_only_those() -> None:
    assert set(EXPERIMENT_TRANSITIONS) == set(ExperimentState)
    assert set(RUN_TRANSITIONS) == set(RunState)


def test_the_terminal_states_are_those_of_the_design() -> None:
    assert {"succeeded", "failed", "cancelled", "lost"} == TERMINAL_STATES
    assert {"succeeded", "diverged", "failed", "cancelled", "skipped"} == TERMINAL_RUN_STATES
    assert {"leased", "starting", "running"} == LEASED_STATES


def test_every_state_is_reached_from_queued_and_reaches_an_end() -> None:
    for table, start, ends in (
        (EXPERIMENT_TRANSITIONS, ExperimentState.QUEUED, TERMINAL_STATES),
        (RUN_TRANSITIONS, RunState.QUEUED, TERMINAL_RUN_STATES),
    ):
        assert _reached(table, start) == set(table)  # type: ignore[arg-type]
        for state in table:
            assert _reached(table, state) & ends  # type: ignore[arg-type]


def test_a_cancel_and_a_failure_are_possible_from_every_state_that_is_not_final() -> None:
    for state in set(ExperimentState) - TERMINAL_STATES:
        assert {ExperimentState.CANCELLED, ExperimentState.FAILED} <= EXPERIMENT_TRANSITIONS[state]


def test_no_run_is_left_unfinished_by_any_end() -> None:
    for state in TERMINAL_STATES:
        for before in (RunState.QUEUED, RunState.RUNNING):
            after = RUNS_LEFT_BY[state][before]
            assert after in TERMINAL_RUN_STATES
            assert after in RUN_TRANSITIONS[before]


def test_an_experiment_moves_exactly_as_the_table_says(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    for before, after in itertools.product(ExperimentState, ExperimentState):
        with database.write() as session:
            session.execute(update(Experiment).values(state=before, finished_at=None))
            if after in EXPERIMENT_TRANSITIONS[before]:
                assert move_experiment(session, identifier, after, expected={before})
                assert session.get_one(Experiment, identifier).state == after
            else:
                with pytest.raises(ValueError, match=f"can't go from {before} to {after}"):
                    move_experiment(session, identifier, after, expected={before})


def test_a_run_moves_exactly_as_the_table_says(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    for before, after in itertools.product(RunState, RunState):
        with database.write() as session:
            run = session.query(Run).filter_by(experiment_id=identifier).order_by(Run.key).first()
            assert run is not None
            run.state = before
            moved = move_run(session, run, after)
            assert moved == (after in RUN_TRANSITIONS[before])
            assert run.state == (after if moved else before)


def test_a_move_from_another_state_than_expected_changes_nothing(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    before = experiments.get(database, identifier)
    with database.write() as session:
        expected = {ExperimentState.STARTING}
        assert not move_experiment(session, identifier, ExperimentState.RUNNING, expected=expected)
    assert experiments.get(database, identifier).version == before.version


def test_a_move_with_another_lease_changes_nothing(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    with database.write() as session:
        moved = move_experiment(
            session, identifier, ExperimentState.LEASED, expected={ExperimentState.QUEUED}, token="other"
        )
        assert not moved
    assert experiments.get(database, identifier).state == ExperimentState.QUEUED


@pytest.mark.parametrize(("end", "run_state"), [("failed", "cancelled"), ("cancelled", "cancelled")])
def test_the_end_of_an_experiment_ends_its_runs_with_the_same_reason(
    database: Database, end: str, run_state: str
) -> None:
    identifier = experiments.submit(database, spec())
    with database.write() as session:
        move_experiment(
            session,
            identifier,
            ExperimentState(end),
            expected={ExperimentState.QUEUED},
            reason=Reason.NO_CAPACITY,
            message="too large",
        )
    found = experiments.get(database, identifier)
    assert found.runs == {run_state: 6}
    assert (found.reason, found.message) == ("no_capacity", "too large")
    assert found.finished_at is not None
    with database.read() as session:
        for run in session.query(Run):
            assert (run.reason, run.message) == ("no_capacity", "too large")


def test_every_move_is_in_the_log_once_with_a_number_of_its_own(database: Database) -> None:
    from services.histories import events_after

    identifier = experiments.submit(database, spec())
    experiments.request_cancel(database, identifier)
    log = events_after(database, identifier)
    assert [(entry.kind, (entry.payload or {}).get("to")) for entry in log] == [
        ("state", "queued"),
        ("cancel_requested", None),
        ("state", "cancelled"),
    ]
    assert [entry.key for entry in log] == sorted({entry.key for entry in log})
    assert events_after(database, identifier, after=log[0].key) == log[1:]


def _reached(table: dict[object, frozenset[object]], start: object) -> set[object]:
    found, open_ends = {start}, [start]
    while open_ends:
        for state in table[open_ends.pop()] - found:
            found.add(state)
            open_ends.append(state)
    return found
