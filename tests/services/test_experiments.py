"""Submitting, reading, listing, cancelling and deleting experiments."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from phantom_core.checks import Capacity
from phantom_core.plan import make_plan, schedule
from phantom_core.protocol import Reason
from services import cursors, experiments, leases, runs
from services.catalogue import ExperimentFilter
from services.database import Database, now
from services.errors import IdempotencyConflict, NotFound, QueryError, SpecError
from services.states import ExperimentState
from services.tables import Experiment, ExperimentAttempt
from tests.services.simulated_job import begun, ran, spec


def test_a_spec_becomes_an_experiment_with_all_arms_and_runs_queued(database: Database) -> None:
    submitted = spec(
        controls=True,
        tags={"team": "vision"},
        description="why",
        arms=[
            {"strategy": "tensor", "name": "tensor", "world_size": 2},
            {"strategy": "phantom", "name": "phantom", "world_size": 2, "ghosts": 6},
        ],
    )
    identifier = experiments.submit(database, submitted)
    found = experiments.get(database, identifier)
    plan = make_plan(submitted)
    assert found.state == "queued"
    assert found.spec == submitted.model_dump(mode="json")
    assert [arm.name for arm in found.arms] == [planned.name for planned in plan.arms]
    assert [arm.is_baseline for arm in found.arms].count(True) == 1
    assert {arm.control_of for arm in found.arms[2:]} == {("phantom",)}
    assert found.arms[1].ghosts == 6
    assert found.tags == {"team": "vision"}
    made = runs.list_runs(database, identifier, limit=200).items
    assert [(run.round, run.position, run.arm, run.seed) for run in made] == [
        (run.round, run.position, run.arm, run.seed) for run in schedule(plan)
    ]
    assert found.runs == {"queued": len(made)}


def test_each_arm_carries_its_cost_by_the_formulas(database: Database) -> None:
    arms = experiments.get(database, experiments.submit(database, spec())).arms
    assert all(arm.cost is not None and arm.cost["parameters"] > 0 for arm in arms)
    tensor, phantom = (arm.cost for arm in arms)
    assert tensor is not None
    assert phantom is not None
    assert phantom["parameters"] < tensor["parameters"]


def test_a_spec_that_can_not_run_is_refused_whole(database: Database) -> None:
    wrong = spec(model={"width": 65})
    with pytest.raises(SpecError) as caught:
        experiments.submit(database, wrong)
    assert {problem.field for problem in caught.value.problems} == {"model.width"}
    assert "not divisible" in str(caught.value)
    assert experiments.list_experiments(database).items == ()


def test_more_ranks_than_the_cluster_has_are_refused_if_that_is_known(database: Database) -> None:
    with pytest.raises(SpecError, match="needs 2 ranks"):
        experiments.submit(database, spec(), capacity=Capacity(cpus=1, gpus=0))
    experiments.submit(database, spec(), capacity=Capacity(cpus=2, gpus=0))


def test_a_repeated_submission_with_a_key_makes_one_experiment(database: Database) -> None:
    first = experiments.submit(database, spec(), submitted_by="me", idempotency_key="k")
    assert experiments.submit(database, spec(), submitted_by="me", idempotency_key="k") == first
    assert experiments.submit(database, spec(), submitted_by="you", idempotency_key="k") != first
    assert experiments.submit(database, spec(), submitted_by="me", idempotency_key="l") != first
    assert len(experiments.list_experiments(database).items) == 3


def test_a_key_can_not_be_used_for_another_spec(database: Database) -> None:
    first = experiments.submit(database, spec(), idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as caught:
        experiments.submit(database, spec(name="other"), idempotency_key="k")
    assert caught.value.experiment_id == first


def test_a_key_stays_used_after_its_experiment_was_deleted(database: Database) -> None:
    first = experiments.submit(database, spec(), idempotency_key="k")
    experiments.request_delete(database, first)
    assert experiments.submit(database, spec(), idempotency_key="k") == first
    assert experiments.list_experiments(database).items == ()


def test_a_key_gives_its_experiment_whatever_the_cluster_has_lost_since(database: Database) -> None:
    nothing = Capacity(cpus=0, gpus=0)
    first = experiments.submit(database, spec(), idempotency_key="k")
    assert experiments.submit(database, spec(), capacity=nothing, idempotency_key="k") == first
    with pytest.raises(IdempotencyConflict):
        experiments.submit(database, spec(name="other"), capacity=nothing, idempotency_key="k")
    with pytest.raises(SpecError):
        experiments.submit(database, spec(), capacity=nothing, idempotency_key="l")
    with pytest.raises(SpecError):
        experiments.submit(database, spec(), capacity=nothing)


def test_concurrent_submissions_with_one_key_make_one_experiment(database: Database) -> None:
    made: list[str] = []
    go = threading.Barrier(6)

    def submit() -> None:
        go.wait()
        made.append(experiments.submit(database, spec(), idempotency_key="k"))

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert len(set(made)) == 1
    assert len(experiments.list_experiments(database).items) == 1


def test_what_does_not_exist_is_said_so(database: Database) -> None:
    for ask in (experiments.get, experiments.request_cancel, experiments.request_delete):
        with pytest.raises(NotFound, match="exp-nothing"):
            ask(database, "exp-nothing")


def test_a_queued_experiment_is_cancelled_at_once(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    assert experiments.request_cancel(database, identifier)
    found = experiments.get(database, identifier)
    assert (found.state, found.reason) == ("cancelled", "cancelled_by_user")
    assert found.runs == {"cancelled": 6}
    assert not experiments.request_cancel(database, identifier)


def test_a_cancel_of_a_leased_experiment_is_an_intent_that_its_dispatcher_sees(database: Database) -> None:
    identifier, lease, _ = begun(database)
    assert experiments.request_cancel(database, identifier)
    first = experiments.get(database, identifier)
    assert first.state == "starting"
    assert first.cancel_requested_at is not None
    assert leases.follow(database, lease).cancel_requested
    assert experiments.request_cancel(database, identifier)
    assert experiments.get(database, identifier).cancel_requested_at == first.cancel_requested_at


def test_deleting_an_ended_experiment_removes_it(database: Database) -> None:
    identifier = ran(database)
    assert experiments.request_delete(database, identifier)
    with pytest.raises(NotFound):
        experiments.get(database, identifier)


def test_deleting_a_running_experiment_waits_for_its_end(database: Database) -> None:
    identifier, lease, _ = begun(database)
    assert not experiments.request_delete(database, identifier)
    found = experiments.get(database, identifier)
    assert found.delete_requested_at is not None
    assert found.cancel_requested_at is not None
    assert leases.finish(database, lease, ExperimentState.CANCELLED)
    with pytest.raises(NotFound):
        experiments.get(database, identifier)


def test_lists_are_newest_first_and_pages_neither_repeat_nor_skip(database: Database) -> None:
    made = [experiments.submit(database, spec(name=f"n{number}")) for number in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = experiments.list_experiments(database, cursor=cursor, limit=3)
        seen += [item.id for item in page.items]
        experiments.submit(database, spec(name="meanwhile"))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted(made, reverse=True)


def test_filters_all_hold_together(database: Database) -> None:
    a = experiments.submit(database, spec(name="Alpha 1", tags={"team": "a", "gpu": "h100"}))
    b = experiments.submit(database, spec(name="alpha 2", tags={"team": "b", "gpu": "h100"}))
    c = experiments.submit(
        database, spec(name="beta_3", arms=[{"strategy": "dense", "name": "dense"}], tags={"team": "a"})
    )
    experiments.request_cancel(database, b)

    def ids(**filters: object) -> set[str]:
        page = experiments.list_experiments(database, filters=ExperimentFilter.model_validate(filters))
        return {item.id for item in page.items}

    assert ids() == {a, b, c}
    assert ids(name_contains="ALPHA") == {a, b}
    assert ids(name_contains="a_3") == {c}
    assert ids(name_contains="%") == set()
    assert ids(tags={"gpu": "h100"}) == {a, b}
    assert ids(tags={"gpu": "h100", "team": "a"}) == {a}
    assert ids(states=["cancelled"]) == {b}
    assert ids(states=["cancelled", "queued"], strategy="dense") == {c}
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert ids(submitted_before=soon) == {a, b, c}
    assert ids(submitted_after=soon) == set()


def test_a_cursor_belongs_to_its_question(database: Database) -> None:
    for _ in range(3):
        experiments.submit(database, spec())
    cursor = experiments.list_experiments(database, limit=1).next_cursor
    assert cursor is not None
    queued = ExperimentFilter(states=(ExperimentState.QUEUED,))
    with pytest.raises(QueryError, match="another question"):
        experiments.list_experiments(database, filters=queued, cursor=cursor)


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "bm90IGpzb24", "W10", "WzEsMl0", "W251bGwsW11d", "A" * 5_000]
)
def test_a_made_up_cursor_is_refused(database: Database, cursor: str) -> None:
    with pytest.raises(QueryError, match="cursor"):
        experiments.list_experiments(database, cursor=cursor)


@pytest.mark.parametrize("after", ["\x00", "é", "x" * 256, 5, None])
def test_a_forged_place_in_a_cursor_is_refused(database: Database, after: object) -> None:
    forged = cursors.encode(ExperimentFilter().model_dump(mode="json"), [after])
    with pytest.raises(QueryError, match="is not one that this service made"):
        experiments.list_experiments(database, cursor=forged)


@pytest.mark.parametrize("limit", [0, -1, 201])
def test_a_limit_out_of_range_is_refused(database: Database, limit: int) -> None:
    with pytest.raises(QueryError, match="between 1 and 200"):
        experiments.list_experiments(database, limit=limit)


def test_unknown_filters_are_refused() -> None:
    with pytest.raises(ValidationError):
        ExperimentFilter.model_validate({"nme": "x"})


@pytest.mark.parametrize(
    "filters", [{"name_contains": "\x00"}, {"tags": {"a": "\x00"}}, {"strategy": "\x00"}]
)
def test_text_that_a_database_does_not_take_is_refused(filters: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ExperimentFilter.model_validate(filters)


def test_timings_tell_where_the_time_went(database: Database) -> None:
    identifier, _, _ = begun(database)
    timings = experiments.get(database, identifier).timings
    assert timings.queued_s is not None
    assert timings.cluster_s is not None
    assert timings.start_up_s is not None
    assert timings.set_up_s is None
    parts = timings.queued_s + timings.cluster_s + timings.start_up_s
    assert timings.total_s == pytest.approx(parts, abs=1e-3)


def test_timings_are_summed_over_attempts_and_each_attempt_has_its_own(database: Database) -> None:
    """Ten seconds in the queue, then two starts, between which it was given back for twenty seconds."""
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    assert leases.release(database, lease)
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    leases.mark_starting(database, lease, "job-2")
    leases.begin_attempt(database, lease, reason=Reason.JOB_UNKNOWN)
    began_s = time.monotonic()
    with database.write() as session:
        start = now(session) - timedelta(seconds=100)

        def at(seconds: float) -> datetime:
            return start + timedelta(seconds=seconds)

        experiment = session.get_one(Experiment, identifier)
        experiment.submitted_at, experiment.leased_at = at(0), at(70)
        first, second, third = (
            session.get_one(ExperimentAttempt, (identifier, number)) for number in (1, 2, 3)
        )
        first.leased_at, first.ended_at = at(10), at(15)
        second.leased_at, second.reached_at, second.reported_at = at(35), at(40), at(47)
        second.first_step_at, second.ended_at = at(50), at(70)
        third.leased_at, third.reached_at = at(70), at(80)
    (listed,) = experiments.list_experiments(database).items
    found = experiments.get(database, identifier)
    late_s = time.monotonic() - began_s + 1e-3
    for timings in (found.timings, listed.timings):
        spans = (timings.queued_s, timings.cluster_s, timings.start_up_s, timings.set_up_s, timings.running_s)
        assert None not in spans
        # The third attempt still starts up.
        assert (*spans[:2], *spans[3:]) == pytest.approx((30, 20, 3, 20))
        assert 27 - 1e-3 <= (timings.start_up_s or 0) <= 27 + late_s
        assert timings.total_s == pytest.approx(sum(span or 0 for span in spans), abs=1e-3)
    assert (found.phase.name, found.phase.since) == ("start_up", at(80))
    assert 20 - 1e-3 <= (found.phase.elapsed_s or 0) <= 20 + late_s
    assert [(each.queued_s, each.cluster_s, each.start_up_s, each.set_up_s) for each in found.attempts] == [
        (10, None, None, None),
        (20, 5, 7, 3),
        (0, 10, None, None),
    ]


def test_what_was_given_back_waits_in_the_queue_again(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    assert leases.release(database, lease)
    found = experiments.get(database, identifier)
    assert found.phase.name == "queued"
    assert found.phase.since == found.attempts[0].ended_at
    assert found.timings.cluster_s is not None
    assert leases.claim(database, "a", 60) is not None
    assert experiments.get(database, identifier).phase.name == "cluster"
    experiments.request_cancel(database, identifier)
    assert experiments.get(database, identifier).timings.running_s is None
