"""Comparisons of whole experiments: while they run, when they end, in lists."""

from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from phantom_core.protocol import Event, ExperimentStarted
from services import assignments, comparisons, experiments, housekeeping, leases
from services.database import Database
from services.errors import NotComparable, NotFound
from services.mishaps import Mishaps
from services.states import ExperimentState
from services.tables import Comparison, Experiment
from services.views import ComparisonView
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver, ran, spec

FIVE = {"rounds": 5}
SAVING = {"phantom": Figures(power_mw=60_000.0)}


def test_another_baseline_turns_the_answer_round(database: Database) -> None:
    identifier = ran(database, figures=SAVING)
    ours, theirs = (comparisons.compare(database, identifier, baseline=name) for name in (None, "phantom"))
    assert (theirs.baseline, theirs.arms[0].arm) == ("phantom", "tensor")
    assert ours.arms[0].primary.ratio == pytest.approx(0.6)
    assert theirs.arms[0].primary.ratio == pytest.approx(1 / 0.6)
    assert theirs.arms[0].primary.verdict == "costs_more"


def test_an_arm_that_does_not_exist_can_not_be_the_baseline(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    with pytest.raises(
        NotComparable, match="no arm 'dense' to compare with; its arms are 'tensor', 'phantom'"
    ):
        comparisons.compare(database, identifier, baseline="dense")
    with pytest.raises(NotFound):
        comparisons.compare(database, "exp-nothing")


def test_method_and_scope_are_carried(database: Database) -> None:
    view = comparisons.compare(database, ran(database))
    assert (view.method, view.scope, view.estimated) == ("nvml.counter", "gpu", False)


def test_a_running_experiment_is_compared_by_the_rounds_it_has(database: Database) -> None:
    identifier, _, job = begun(database, spec(measurement=FIVE))
    deliver(database, job, job.started())
    for run in job.assignment.runs[:7]:
        deliver(database, job, job.run(run, Figures(power_mw=60_000 if run.arm == "phantom" else 100_000)))
    view = comparisons.compare(database, identifier)
    assert not view.final
    primary = view.arms[0].primary
    assert (primary.pairs, primary.verdict) == (3, "saves")
    assert {each.round for each in primary.excluded} == {3, 4}
    assert any("is queued" in each.reason for each in primary.excluded)


def test_the_answer_is_stored_when_the_experiment_ends_and_shown_in_lists(database: Database) -> None:
    identifier = ran(database, figures={"phantom": Figures(power_mw=60_000.0)})
    view = comparisons.compare(database, identifier)
    assert view.final
    assert comparisons.compare(database, identifier) == view
    with database.read() as session:
        rows = session.scalars(select(Comparison).where(Comparison.is_primary)).all()
        assert [(row.metric, row.verdict) for row in rows] == [("energy_per_step_mj", "saves")]
    (verdict,) = experiments.list_experiments(database).items[0].verdicts
    assert (verdict.arm, verdict.verdict) == ("phantom", "saves")
    assert verdict.sentence == view.arms[0].primary.sentence


def test_an_experiment_that_failed_half_way_is_compared_too(database: Database) -> None:
    identifier, lease, job = begun(database, spec(measurement=FIVE))
    deliver(database, job, job.started())
    for run in job.assignment.runs[:6]:
        deliver(database, job, job.run(run, Figures(power_mw=60_000 if run.arm == "phantom" else 100_000)))
    leases.finish(database, lease, ExperimentState.FAILED)
    assert comparisons.compare(database, identifier).arms[0].primary.verdict == "saves"


def test_a_missing_answer_is_made_by_the_sweep(database: Database) -> None:
    identifier = ran(database)
    with database.write() as session:
        session.execute(update(Experiment).values(compared_at=None, comparison=None))
    assert housekeeping.sweep(database).compared == 1
    assert housekeeping.sweep(database).compared == 0
    with database.read() as session:
        assert session.get_one(Experiment, identifier).comparison is not None


def test_an_experiment_with_one_arm_has_an_empty_answer(database: Database) -> None:
    identifier = ran(database, spec(arms=[{"strategy": "tensor", "name": "alone", "world_size": 2}]))
    view = comparisons.compare(database, identifier)
    assert (view.final, view.arms) == (True, ())
    assert housekeeping.sweep(database).compared == 0


def test_rounds_over_data_that_changed_between_two_starts_are_not_paired(sqlite_database: Database) -> None:
    database = sqlite_database
    identifier, lease, job = begun(database, spec(measurement=FIVE))

    def with_data(events: Iterable[Event], digest: str) -> list[Event]:
        return [
            event.model_copy(update={"payload": event.payload.model_copy(update={"data_digest": digest})})
            if isinstance(event.payload, ExperimentStarted)
            else event
            for event in events
        ]

    first = [event for run in job.assignment.runs[:7] for event in job.run(run)]
    deliver(database, job, [*with_data(job.started(), "aaaa"), *first])
    leases.begin_attempt(database, lease)
    again = SimulatedJob(assignments.assignment(database, identifier), clock_s=5_000.0)
    deliver(database, again, with_data(again.everything(), "bbbb"))
    primary = comparisons.compare(database, identifier).arms[0].primary
    assert (primary.pairs, primary.blocking_flags) == (4, ("data_differs",))
    assert [each.round for each in primary.excluded] == [3]


def under_a_power_limit(events: Iterable[Event], power_limit_mw: float) -> list[Event]:
    """The same events of boards that were under another limit."""

    def limited(event: Event) -> Event:
        payload = event.payload
        if not isinstance(payload, ExperimentStarted):
            return event
        devices = tuple(
            device.model_copy(update={"power_limit_mw": power_limit_mw}) for device in payload.devices
        )
        return event.model_copy(update={"payload": payload.model_copy(update={"devices": devices})})

    return [limited(event) for event in events]


def test_rounds_across_a_limit_that_was_set_between_two_starts_are_not_paired(
    sqlite_database: Database,
) -> None:
    """A host that lost its power comes back with its boards' own limit, which a person had lowered."""
    database = sqlite_database
    identifier, lease, job = begun(database, spec(measurement=FIVE))
    first = [event for run in job.assignment.runs[:7] for event in job.run(run)]
    deliver(database, job, [*under_a_power_limit(job.started(), 500_000.0), *first])
    leases.begin_attempt(database, lease)
    again = SimulatedJob(assignments.assignment(database, identifier), clock_s=5_000.0)
    deliver(database, again, under_a_power_limit(again.everything(), 700_000.0))
    primary = comparisons.compare(database, identifier).arms[0].primary
    assert (primary.pairs, primary.blocking_flags) == (4, ("clocks_differ",))
    assert [each.round for each in primary.excluded] == [3]


def test_a_fault_in_comparing_costs_neither_the_end_nor_the_other_comparisons(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = comparisons._compute

    def faulty(session: Session, experiment: Experiment, *asked: Any) -> ComparisonView:
        if experiment.name == "faulty":
            raise ZeroDivisionError
        return compute(session, experiment, *asked)

    monkeypatch.setattr(comparisons, "_compute", faulty)
    bad, good = (ran(sqlite_database, spec(name=name)) for name in ("faulty", "sound"))
    with sqlite_database.write() as session:
        session.get_one(Experiment, good).compared_at = None
    mishaps = Mishaps()
    assert housekeeping.sweep(sqlite_database, mishaps=mishaps).compared == 1
    assert f"comparing {bad} (ZeroDivisionError)" in (mishaps.told() or "")
    monkeypatch.undo()
    assert housekeeping.sweep(sqlite_database).compared == 1
