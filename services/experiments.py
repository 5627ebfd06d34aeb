"""Experiments: submit, look at, cancel, delete."""

import hashlib

from sqlalchemy.orm import Session

from phantom_core.checks import Capacity
from phantom_core.plan import make_plan
from phantom_core.spec import ExperimentSpec
from services import deletion
from services.admission_writes import admit
from services.admissions import Admission, KeyClaim, admission_of
from services.catalogue import get, list_experiments
from services.database import Database, now
from services.endings import end_experiment
from services.errors import IdempotencyConflict, NotFound, SpecError
from services.ids import experiment_id as new_id
from services.moves import lock_experiment, log, move_experiment
from services.states import ExperimentState
from services.tables import Experiment, IdempotencyKey
from services.validation import accept

__all__ = [
    "get",
    "list_experiments",
    "made_with_key",
    "made_with_key_of",
    "move_experiment",
    "prepare",
    "request_cancel",
    "request_delete",
    "submit",
]


def prepare(
    spec: ExperimentSpec,
    *,
    capacity: Capacity | None = None,
    submitted_by: str | None = None,
    idempotency_key: str | None = None,
) -> Admission:
    """Checks a spec and makes what is to be written of it; asks no database.

    Args:
        spec: What to run.
        capacity: What the cluster has; None skips the checks that need it.
        submitted_by: Id of the API key that asked; None without one.
        idempotency_key: A repeat with the same key by the same caller makes nothing new.

    Raises:
        SpecError: The spec can't be run as it is.
    """
    plan = make_plan(spec)
    costs = accept(plan, capacity)
    body = spec.model_dump_json()
    claim = None
    if idempotency_key is not None:
        claim = _claim(body, submitted_by, idempotency_key)
    return admission_of(new_id(), plan, costs, body, submitted_by=submitted_by, claim=claim)


def _claim(spec_json: str, submitted_by: str | None, idempotency_key: str) -> KeyClaim:
    digest = hashlib.sha256(spec_json.encode()).digest()
    return KeyClaim(submitted_by or "", idempotency_key, digest)


def made_with_key(
    db: Database,
    spec: ExperimentSpec,
    *,
    submitted_by: str | None = None,
    idempotency_key: str,
) -> str | None:
    """The experiment that an earlier submission with a key made, for a spec that can't be run any more.

    What a cluster has may change between a submission and its repeat, which must be answered all the same.

    Args:
        db: The database.
        spec: What was submitted.
        submitted_by: See `prepare`.
        idempotency_key: See `prepare`.

    Returns:
        Its id; None if there is none.

    Raises:
        IdempotencyConflict: The key was used for another spec.
    """
    return _made_with(db, _claim(spec.model_dump_json(), submitted_by, idempotency_key))


def submit(
    db: Database,
    spec: ExperimentSpec,
    *,
    capacity: Capacity | None = None,
    submitted_by: str | None = None,
    idempotency_key: str | None = None,
) -> str:
    """Accepts a spec: writes experiment, arms and runs as `queued`, all or nothing.

    Args:
        db: The database.
        spec: What to run.
        capacity: See `prepare`.
        submitted_by: See `prepare`.
        idempotency_key: See `prepare`.

    Returns:
        The experiment's id; the earlier one for a repeat.

    Raises:
        SpecError: The spec can't be run as it is.
        IdempotencyConflict: The key was used for another spec.
    """
    try:
        admission = prepare(
            spec,
            capacity=capacity,
            submitted_by=submitted_by,
            idempotency_key=idempotency_key,
        )
    except SpecError:
        if idempotency_key is None:
            raise
        earlier = made_with_key(db, spec, submitted_by=submitted_by, idempotency_key=idempotency_key)
        if earlier is None:
            raise
        return earlier
    # Whoever holds the key may be undone, or forgotten, between the two looks; then it is free again.
    while not admit(db, [admission]):
        earlier = made_with_key_of(db, admission)
        if earlier is not None:
            return earlier
    return admission.id


def request_cancel(db: Database, experiment_id: str) -> bool:
    """Writes down that an experiment shall be cancelled; one that no dispatcher has taken ends at once.

    Args:
        db: The database.
        experiment_id: Which.

    Returns:
        Whether there is anything to cancel: False if it had ended already.

    Raises:
        NotFound: There is no such experiment.
    """
    with db.write() as session:
        experiment = _locked(session, experiment_id)
        return _intend_cancel(session, experiment)


def request_delete(db: Database, experiment_id: str) -> bool:
    """Writes down that an experiment shall be deleted, with all that was measured; it is cancelled first.

    Args:
        db: The database.
        experiment_id: Which.

    Returns:
        Whether it is gone; False if it goes once its job has ended.

    Raises:
        NotFound: There is no such experiment.
    """
    with db.write() as session:
        experiment = _locked(session, experiment_id)
        _intend_cancel(session, experiment)
        if experiment.delete_requested_at is None:
            moment = now(session)
            experiment.delete_requested_at = moment
            log(session, experiment, "delete_requested", {}, moment=moment)
    return deletion.delete_if_asked(db, experiment_id)


def _intend_cancel(session: Session, experiment: Experiment) -> bool:
    if ExperimentState(experiment.state).is_terminal:
        return False
    if experiment.cancel_requested_at is None:
        moment = now(session)
        experiment.cancel_requested_at = moment
        log(session, experiment, "cancel_requested", {}, moment=moment)
    if experiment.state == ExperimentState.QUEUED:
        end_experiment(session, experiment, ExperimentState.CANCELLED, message="cancelled before it began")
    return True


def _locked(session: Session, experiment_id: str) -> Experiment:
    experiment = lock_experiment(session, experiment_id)
    if experiment is None:
        raise NotFound("experiment", experiment_id)
    return experiment


def made_with_key_of(db: Database, admission: Admission) -> str | None:
    """The experiment that an earlier submission with the same key made; None if there is none any more.

    Raises:
        IdempotencyConflict: That was of another spec.
    """
    assert admission.claim is not None, "what has no key is never refused for it"
    return _made_with(db, admission.claim)


def _made_with(db: Database, claim: KeyClaim) -> str | None:
    with db.read() as session:
        earlier = session.get(IdempotencyKey, (claim.caller, claim.key))
    if earlier is None:
        return None
    if earlier.payload_sha256 != claim.payload_sha256:
        raise IdempotencyConflict(claim.key, earlier.experiment_id)
    return earlier.experiment_id
