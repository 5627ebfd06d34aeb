"""What worker groups say themselves: that they are done and want the next experiment, or that they have ended."""

import hmac
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import GroupEnded, NextAnswer, NextRequest, Reason
from services import keys
from services.attempts import job_key
from services.database import Database, now
from services.errors import KeyRefused
from services.event_limits import text
from services.groups import locked, move, token_hash
from services.moves import lock_experiment
from services.states import ExperimentState, GroupState, RunState
from services.tables import Experiment, ExperimentAttempt, Run, WorkerGroup

SEEN_EVERY_S = 2.0
"""An idle group's questions are written down this often, though it asks more often."""

WAIT = NextAnswer(action="wait")
END = NextAnswer(action="end")


REFUSED = "the worker group's token is not valid, or the group is given up"


def verify(db: Database, token: str) -> None:
    """Looks whether a token is any group's; groups are few.

    Raises:
        KeyRefused: It is none's.
    """
    with db.read() as session:
        known = session.scalars(select(WorkerGroup.id).where(WorkerGroup.token_hash == token_hash(token)))
        if known.first() is None:
            raise KeyRefused(REFUSED)


def ask(db: Database, request: NextRequest, token: str, keep_s: float) -> NextAnswer:
    """What a group is to do next.

    Args:
        db: The database.
        request: Which group asks, and what it made last.
        token: The group's token.
        keep_s: Seconds for which an idle group may stay.

    Raises:
        KeyRefused: There is no such group, or the token is not its.
    """
    with db.read() as session:
        seen = _known(session, request.group_id, token)
        moment = now(session)
        state, experiment_id = seen.state, seen.experiment_id
        # Neither holds for what a clock that was set back has in its future.
        is_fresh = abs(moment - seen.seen_at) <= timedelta(seconds=SEEN_EVERY_S)
        is_early = timedelta() <= moment - seen.since <= timedelta(seconds=keep_s)
    if state == GroupState.IDLE and is_fresh and is_early:
        return WAIT
    with db.write() as session:
        experiment = lock_experiment(session, experiment_id) if experiment_id else None
        group = locked(session, request.group_id)
        if group is None:
            return END
        if (group.state, group.experiment_id) != (state, experiment_id):
            return WAIT  # it was changed between the two looks: the next question sees that
        moment = now(session)
        group.seen_at, group.device = moment, request.device
        match GroupState(state):
            case GroupState.IDLE:
                if group.since < moment - timedelta(seconds=keep_s):
                    return _end(group, moment)
                if group.since > moment:
                    move(group, GroupState.IDLE, moment)
                return WAIT
            case GroupState.OFFERED:
                return _hand_over(session, group, experiment, moment)
            case GroupState.WORKING if experiment_id != request.finished:
                return _hand_over(session, group, experiment, moment)  # the answer was lost on its way
            case GroupState.WORKING if keep_s > 0 and _went_well(session, group, experiment):
                move(group, GroupState.IDLE, moment)
                group.experiment_id = group.attempt = None
                return WAIT
        return _end(group, moment)


def ended(db: Database, told: GroupEnded, token: str) -> None:
    """Notes how a group ended: with that the experiment ends, or is tried again, once Ray says so too.

    Args:
        db: The database.
        told: By the job's driver.
        token: The group's token.

    Raises:
        KeyRefused: There is no such group, or the token is not its.
    """
    with db.read() as session:
        experiment_id = _known(session, told.group_id, token).experiment_id
    with db.write() as session:
        experiment = lock_experiment(session, experiment_id) if experiment_id else None
        group = locked(session, told.group_id)
        if group is None:
            return
        is_its = experiment is not None and group.experiment_id == experiment.id
        if is_its and told.outcome != "succeeded" and group.state != GroupState.OFFERED:
            assert experiment is not None
            _report(session, experiment, group, told)
        session.delete(group)


def _report(session: Session, experiment: Experiment, group: WorkerGroup, told: GroupEnded) -> None:
    """The same as the job's last word: `endings.settle` and the dispatcher go by it."""
    job = session.get(ExperimentAttempt, (experiment.id, group.attempt))
    # Whatever ended a group before it began is not this experiment's fault, but for what its user must mend.
    handing_over = (
        job is not None and job.warm and job.environment is None and told.reason is not Reason.TASK_ERROR
    )
    is_over = ExperimentState(experiment.state).is_terminal
    if is_over or experiment.attempt != group.attempt or handing_over:
        return
    if experiment.reported_outcome is None:
        experiment.reported_outcome = told.outcome
        experiment.reported_reason = told.reason
        experiment.reported_message = text(told.message)
    experiment.last_event_at = now(session)


def _known(session: Session, group_id: str, token: str) -> WorkerGroup:
    group = session.get(WorkerGroup, group_id)
    known = hmac.compare_digest(group.token_hash if group else bytes(32), token_hash(token))
    if group is None or not known:
        raise KeyRefused(REFUSED)
    return group


def _hand_over(
    session: Session, group: WorkerGroup, experiment: Experiment | None, moment: datetime
) -> NextAnswer:
    """Gives the group the experiment's own key, made just now; an earlier one stops working."""
    wanted = (
        experiment is not None
        and experiment.state == ExperimentState.STARTING
        and experiment.attempt == group.attempt
        and experiment.cancel_requested_at is None
    )
    if not wanted:
        return _end(group, moment)
    assert experiment is not None
    keys.revoke_of_experiment(session, experiment.id)
    key = job_key(session, experiment)
    if group.state != GroupState.WORKING:
        move(group, GroupState.WORKING, moment)
    return NextAnswer(action="begin", experiment_id=experiment.id, token=key.token)


def _went_well(session: Session, group: WorkerGroup, experiment: Experiment | None) -> bool:
    """Whether the group's processes are as good as new: after an arm's error or lack of memory they may not be."""
    if experiment is None:
        return True  # it ended, and was deleted since
    if experiment.state != ExperimentState.SUCCEEDED or experiment.attempt != group.attempt:
        return False
    failed = session.scalars(
        select(Run.key).where(Run.experiment_id == experiment.id, Run.state == RunState.FAILED).limit(1)
    ).first()
    return failed is None and experiment.cancel_requested_at is None


def _end(group: WorkerGroup, moment: datetime) -> NextAnswer:
    if group.state != GroupState.ENDING:
        move(group, GroupState.ENDING, moment)
    return END
