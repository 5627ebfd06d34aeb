"""The end of a very long run: what is written down is what windows say one by one, at a cost that does not grow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from sqlalchemy import Engine, event, select

from phantom_core.meters.integration import integrate_power
from phantom_core.protocol import Event, PowerSamples
from services import runs
from services.database import Database
from services.power_blocks import joined, unpack
from services.tables import Attempt, Experiment, PowerSample, Window
from services.window_rows import windows_of
from services.window_samples import MARGIN_S, look
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver, spec

BOARDS = 2
AT_ONCE = 1_000
"""Events in a batch."""


def long_run(
    database: Database, count: int, change: Callable[[Event], Event] = lambda each: each
) -> tuple[SimulatedJob, list[Event]]:
    """A job that has told of all windows of its only run, and the events that are still to come."""
    experiment = spec(
        arms=[{"name": "tensor", "strategy": "tensor", "world_size": BOARDS}],
        training={"stop": {"kind": "steps", "steps": count, "max_steps": 10**6}},
        measurement={"rounds": 1},
    )
    _, _, job = begun(database, experiment)
    figures = Figures(windows=count, steps=count, window_s=0.4)
    events = [change(each) for each in [*job.started(), *job.run(job.assignment.runs[0], figures)]]
    *events, end = events
    for first in range(0, len(events), AT_ONCE):
        deliver(database, job, events[first : first + AT_ONCE])
    return job, [end]


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is sent to the database meanwhile; one that is sent with many rows counts once."""
    sent: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def uneven(told: Event) -> Event:
    """Power that goes up and down, with readings that failed and, now and then, none for a while."""
    payload = told.payload
    if not isinstance(payload, PowerSamples):
        return told
    powers = [
        None if number % 11 == 3 or told.seq % 9 == 5 else 100_000.0 + 9_000 * ((7 * number + told.seq) % 5)
        for number in range(len(payload.power_mw))
    ]
    return told.model_copy(update={"payload": payload.model_copy(update={"power_mw": tuple(powers)})})


def finished_with(database: Database, count: int) -> int:
    """Statements that the end of a run with so many windows takes."""
    job, end = long_run(database, count)
    with statements() as sent:
        deliver(database, job, end)
    run = runs.get(database, job.assignment.runs[0].run_id)
    assert run.energy_training_mj == pytest.approx(BOARDS * count * 0.4 * Figures.power_mw)
    assert run.energy_integral_mj == pytest.approx(BOARDS * count * 0.4 * Figures.power_mw)
    return len(sent)


def test_the_end_of_ten_thousand_windows_takes_no_more_statements_than_that_of_ten(
    sqlite_database: Database,
) -> None:
    few = finished_with(sqlite_database, 10)
    assert finished_with(sqlite_database, 10_000 // BOARDS) <= few + 2


def test_what_was_seen_in_each_window_is_what_the_window_alone_says(database: Database) -> None:
    job, end = long_run(database, 40, uneven)
    deliver(database, job, end)
    with database.read() as session:
        rows = session.scalars(select(Window).where(Window.phase == "training")).all()
        assert len(rows) == BOARDS * 40
        for row in rows:
            blocks = session.scalars(
                select(PowerSample.readings).where(PowerSample.device_key == row.device_key)
            )
            readings = joined([unpack(block) for block in blocks])
            start_s, end_s = row.started_monotonic_s, row.started_monotonic_s + row.duration_s
            near = (readings.monotonic_s >= start_s - MARGIN_S) & (readings.monotonic_s < end_s + MARGIN_S)
            table = np.column_stack((readings.monotonic_s[near], readings.power_mw[near]))
            alone = integrate_power(table, start_s, end_s, rate_hz=10)
            assert row.sample_count == alone.sample_count
            assert row.integral_mj == pytest.approx(alone.energy_mj, rel=1e-12)
            assert row.integral_uncertainty_mj == pytest.approx(alone.uncertainty_mj, rel=1e-12)
            assert row.largest_gap_s == pytest.approx(alone.largest_gap_s, rel=1e-12)
            assert row.seen_flags == ([flag.value for flag in alone.flags] or None)


def test_windows_that_look_as_before_are_not_written_again(sqlite_database: Database) -> None:
    job, end = long_run(sqlite_database, 10)
    deliver(sqlite_database, job, end)
    with sqlite_database.write() as session, statements() as sent:
        look(
            session,
            session.scalars(select(Experiment)).one(),
            windows_of(session, session.scalars(select(Attempt)).all()),
        )
    assert sent
    assert not [statement for statement in sent if statement.startswith("UPDATE windows")]
