"""Batches of points written together: the same rows as by `ingest`, each once, and nothing of what isn't plain."""

import itertools
from collections.abc import Iterable, Sequence
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from phantom_core.protocol import Event, EventBatch, MetricPoint, Metrics
from services import experiments, histories, ingest, keys
from services.database import Database, now
from services.ingest_lock import lock
from services.point_batches import read
from services.point_writes import Sent, store
from services.tables import ApiKey, Experiment, MetricBlock
from services.tables import Event as EventRow
from tests.services.rows import snapshot
from tests.services.simulated_job import Figures, SimulatedJob, Source, begun, deliver, spec

FIGURES = {"phantom": Figures(power_mw=60_000.0, window_s=4.0), "tensor": Figures(window_s=4.0)}


def key_of(database: Database, experiment_id: str) -> str:
    """Public part of a job's key."""
    with database.read() as session:
        return session.scalars(
            select(ApiKey.id).where(ApiKey.experiment_id == experiment_id, ApiKey.revoked_at.is_(None))
        ).one()


def sent(database: Database, job: SimulatedJob, events: Iterable[Event]) -> Sent:
    """Events of points as they arrive."""
    experiment_id = job.assignment.experiment_id
    batch = read(job.batch(events).model_dump_json().encode(), experiment_id)
    assert batch is not None
    return Sent(key_of(database, experiment_id), batch)


def told(job: SimulatedJob, count: int = 3, source: str = "rank-0", first: int = 0) -> list[Event]:
    """Events of two points each, alternately of two runs."""
    voice = Source(source, first)
    runs = itertools.islice(itertools.cycle(job.assignment.runs[:2]), count)
    return [
        voice.event(
            run.run_id,
            run.attempt,
            job.at() + timedelta(seconds=number),
            Metrics(
                points=(
                    MetricPoint(
                        step=10 * number, name="loss", value=1 / (1 + number), energy_mj=2.5 * number
                    ),
                    MetricPoint(step=10 * number, name="accuracy", value=float("nan")),
                )
            ),
        )
        for number, run in enumerate(runs)
    ]


def rows_of(database: Database) -> tuple[int, int, int]:
    """How many lines of jobs are in the log, how many blocks and points there are."""
    with database.read() as session:
        lines = session.scalar(select(func.count()).where(EventRow.kind == "metrics"))
        blocks = session.scalar(select(func.count()).select_from(MetricBlock))
        points = session.scalar(select(func.sum(MetricBlock.point_count)))
        return lines or 0, blocks or 0, points or 0


def heard_at(database: Database, experiment_id: str) -> object:
    with database.read() as session:
        return session.get_one(Experiment, experiment_id).last_event_at


def test_the_rows_are_those_that_ingest_writes(database: Database) -> None:
    found = []
    for write in (deliver, lambda db, job, events: store(db, [sent(db, job, events)])):
        identifier, _, job = begun(database)
        write(database, job, [*told(job), *told(job, 1, "sampler-node", 7)])
        run = job.assignment.runs[0]
        empty = Source("rank-0", 99).event(run.run_id, run.attempt, job.at(), Metrics(points=()))
        write(database, job, [empty])
        rows = snapshot(database, identifier)
        del rows["experiments"]  # two that are under way have leases of their own
        found.append(rows)
    assert found[0] == found[1]
    assert len(found[1]["metric_blocks"]) == 4
    assert sum('"kind": "metrics"' in row for row in found[1]["events"]) == 5


def test_points_come_back_as_they_were_told(database: Database) -> None:
    _, _, job = begun(database)
    store(database, [sent(database, job, told(job, 5))])
    accuracy, loss = histories.metric_history(database, job.assignment.runs[0].run_id).series
    assert (loss.step, loss.value, loss.energy_mj) == ((0, 20, 40), (1.0, 1 / 3, 1 / 5), (0.0, 5.0, 10.0))
    assert (accuracy.value, accuracy.non_finite) == ((None,) * 3, dict.fromkeys(range(3), "nan"))
    assert accuracy.energy_mj == (None,) * 3


def test_each_event_lands_once(database: Database) -> None:
    identifier, _, job = begun(database)
    events = told(job, 6)
    assert store(database, [sent(database, job, events[:4])]) == [4]
    version = experiments.get(database, identifier).version
    assert store(database, [sent(database, job, events[:4])]) == [0]
    assert experiments.get(database, identifier).version == version
    assert store(database, [sent(database, job, events[2:])]) == [2]
    assert rows_of(database) == (6, 6, 12)
    assert deliver(database, job, events).duplicates == 6


def test_batches_of_several_experiments_are_told_apart(database: Database) -> None:
    jobs = [begun(database)[2] for _ in range(3)]
    together = [sent(database, job, told(job, 2 + number)) for number, job in enumerate(jobs)]
    assert store(database, together) == [2, 3, 4]
    assert store(database, [*together, sent(database, jobs[1], told(jobs[1], 2, "rank-1"))]) == [0, 0, 0, 2]
    assert rows_of(database) == (11, 11, 22)


def test_of_batches_that_hold_the_same_the_later_waits(database: Database) -> None:
    _, _, job = begun(database)
    events = told(job, 5)
    batches = [sent(database, job, part) for part in (events[:3], events[2:], events[3:])]
    assert store(database, batches) == [3, None, None]
    assert rows_of(database) == (3, 3, 6)
    assert store(database, batches[1:2]) == [2]


def test_a_sampler_s_word_is_no_sign_of_life_of_the_ranks(database: Database) -> None:
    identifier, _, job = begun(database)
    before, version = heard_at(database, identifier), experiments.get(database, identifier).version
    store(database, [sent(database, job, told(job, 1, "sampler-node"))])
    assert heard_at(database, identifier) == before
    store(database, [sent(database, job, told(job, 1))])
    after = heard_at(database, identifier)
    assert after is not None
    assert after != before
    assert experiments.get(database, identifier).version == version + 2


def spoil_key(database: Database, job: SimulatedJob) -> None:
    with database.write() as session:
        keys.revoke_of_experiment(session, job.assignment.experiment_id)


def expire_key(database: Database, job: SimulatedJob) -> None:
    with database.write() as session:
        keys.expire_of_experiment(session, job.assignment.experiment_id, now(session), -1.0)


def end_by_word(database: Database, job: SimulatedJob) -> None:
    change(database, job, reported_outcome="succeeded")


def end(database: Database, job: SimulatedJob) -> None:
    with database.read() as session:
        moment = now(session)
    change(database, job, state="succeeded", finished_at=moment, compared_at=None)


def begin_again(database: Database, job: SimulatedJob) -> None:
    change(database, job, attempt=2)


def change(database: Database, job: SimulatedJob, **values: object) -> None:
    with database.write() as session:
        session.execute(
            update(Experiment).where(Experiment.id == job.assignment.experiment_id).values(**values)
        )


@pytest.mark.parametrize("spoil", [spoil_key, expire_key, end_by_word, end, begin_again])
def test_what_is_not_of_a_run_under_way_is_left_out_and_the_others_are_not(
    database: Database, spoil: object
) -> None:
    assert callable(spoil)
    (_, _, other), (_, _, job) = begun(database), begun(database)
    batches = [sent(database, each, told(each)) for each in (job, other)]
    spoil(database, job)
    assert store(database, batches) == [None, 3]
    assert rows_of(database) == (3, 3, 6)
    assert store(database, batches[:1]) == [None]
    assert rows_of(database) == (3, 3, 6)


def test_a_batch_with_one_event_of_an_unknown_run_or_attempt_is_left_out_whole(database: Database) -> None:
    identifier, _, job = begun(database)
    good = told(job, 2)
    for changes in ({"subject_id": f"{identifier}-none"}, {"attempt": 2}):
        bad = good[1].model_copy(update=changes)
        assert store(database, [sent(database, job, [good[0], bad])]) == [None]
    assert rows_of(database) == (0, 0, 0)


def test_a_late_figure_of_an_ended_and_compared_experiment_is_kept(database: Database) -> None:
    identifier, _, job = begun(database)
    late = told(job, 1, first=1_000)
    batch = sent(database, job, late)
    deliver(database, job, job.everything())
    lines = rows_of(database)[0]
    assert experiments.get(database, identifier).state == "succeeded"
    assert store(database, [batch]) == [1]
    assert rows_of(database)[0] == lines + 1


def test_what_another_holds_keeps_nobody_else_waiting(database: Database) -> None:
    (_, _, other), (held, _, job) = begun(database), begun(database)
    batches = [sent(database, each, told(each)) for each in (job, other)]
    if not database.is_sqlite:  # which has one lock for all
        with database.write() as session:
            assert lock(session, held) is not None
            assert store(database, batches) == [None, 3]
    assert sum(each or 0 for each in store(database, batches)) == (6 if database.is_sqlite else 3)
    assert rows_of(database) == (6, 6, 12)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_rows_do_not_depend_on_which_way_a_batch_went(database: Database, data: st.DataObject) -> None:
    expected, _, job = begun(database, spec(measurement={"rounds": 2}))
    deliver(database, job, job.everything(FIGURES))
    identifier, _, job = begun(database, spec(measurement={"rounds": 2}))
    events = job.everything(FIGURES)
    order = data.draw(st.permutations(events), label="order")
    order += data.draw(st.lists(st.sampled_from(events), max_size=10), label="repeated")
    key, accepted = key_of(database, identifier), 0
    for batch in runs_of_a_kind(order):
        accepted += _take(database, key, job.batch(batch))
    assert accepted == len(events)
    assert snapshot(database, identifier) == snapshot(database, expected)


def runs_of_a_kind(events: Sequence[Event]) -> list[list[Event]]:
    """Events in their order, cut so that points are by themselves."""
    kinds = itertools.groupby(events, lambda event: isinstance(event.payload, Metrics))
    return [list(part) for _, part in kinds]


def _take(database: Database, key: str, batch: EventBatch) -> int:
    points = read(batch.model_dump_json().encode(), batch.experiment_id)
    accepted = None if points is None else store(database, [Sent(key, points)])[0]
    return ingest.ingest(database, batch).accepted if accepted is None else accepted
