"""Arms against the baseline, paired by round: stored when an experiment ends, computed while it runs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session, defer

from phantom_core.flags import Flag
from phantom_core.intervals import LEVEL, SEQUENTIAL_LEVEL
from phantom_core.plan import derived_seed
from phantom_core.spec import MeasurementSpec, TrainingSpec
from services.arm_runs import ArmRuns
from services.database import Database, now
from services.errors import NotComparable, NotFound
from services.made_with import MadeWith
from services.metrics import metric_named, primary_metric
from services.mishaps import Mishaps
from services.moves import lock_experiment
from services.pairing import Asked, compare_arm
from services.states import TERMINAL_STATES, ExperimentState, RunState
from services.tables import Arm, Attempt, Comparison, Device, Experiment, ExperimentAttempt, Run
from services.views import ArmComparison, ComparisonView
from services.window_sums import MIXED


def compare(
    db: Database, experiment_id: str, *, baseline: str | None = None, precision: float | None = None
) -> ComparisonView:
    """All arms of an experiment against its baseline.

    Args:
        db: The database.
        experiment_id: Which.
        baseline: Another arm to compare with; None takes the experiment's.
        precision: Wished half-width of the intervals, as a share of the ratio, for which the rounds needed
            are told; None takes the experiment's.

    Raises:
        NotFound: There is no such experiment.
        NotComparable: It has no such arm.
    """
    with db.read() as session:
        experiment = session.get(Experiment, experiment_id)
        if experiment is None:
            raise NotFound("experiment", experiment_id)
        asked = baseline or experiment.baseline
        is_stored = experiment.compared_at is not None and precision is None
        if asked == experiment.baseline and is_stored:
            return ComparisonView.model_validate(experiment.comparison)
        return _compute(session, experiment, asked, precision)


def store(db: Database, experiment_id: str) -> bool:
    """Computes and stores the comparison of an experiment that has ended, unless it is stored.

    Returns:
        Whether it stored one.
    """
    while True:
        with db.read() as session:
            experiment = session.get(Experiment, experiment_id)
            if experiment is None or experiment.compared_at is not None:
                return False
            if not ExperimentState(experiment.state).is_terminal:
                return False
            version = experiment.version
            view = _compute(session, experiment, experiment.baseline)
            keys = {arm.name: arm.key for arm in _arms(session, experiment_id)}
        with db.write() as session:
            experiment = lock_experiment(session, experiment_id)
            if experiment is None:
                return False
            if experiment.version != version:
                continue  # late events came in between; what was computed is out of date already
            experiment.comparison = view.model_dump(mode="json")
            experiment.compared_at = view.computed_at
            experiment.version += 1
            session.execute(delete(Comparison).where(Comparison.experiment_id == experiment_id))
            rows = [row for arm in view.arms for row in _rows(experiment_id, keys[arm.arm], arm)]
            if rows:
                session.execute(insert(Comparison), rows)
            return True


def store_missing(db: Database, mishaps: Mishaps, limit: int = 100) -> int:
    """Stores comparisons that a process which died has left out.

    Args:
        db: The database.
        mishaps: Keeps what goes wrong with one from the others.
        limit: How many at most; the latest first.

    Returns:
        How many it stored.
    """
    with db.read() as session:
        missing = session.scalars(
            select(Experiment.id)
            .where(Experiment.state.in_(TERMINAL_STATES), Experiment.compared_at.is_(None))
            .order_by(Experiment.finished_at.desc())
            .limit(limit)
        ).all()
    return sum(
        mishaps.attempt(f"comparing {identifier}", partial(store, db, identifier), False)
        for identifier in missing
    )


def _compute(
    session: Session, experiment: Experiment, baseline: str, precision: float | None = None
) -> ComparisonView:
    arms = _arms(session, experiment.id)
    if baseline not in [arm.name for arm in arms]:
        raise NotComparable(
            f"experiment {experiment.id} has no arm {baseline!r} to compare with; its arms are "
            f"{', '.join(repr(arm.name) for arm in arms)}"
        )
    runs = session.scalars(select(Run).where(Run.experiment_id == experiment.id)).all()
    devices = {
        device.key: device
        for device in session.scalars(select(Device).where(Device.experiment_id == experiment.id))
    }
    made_with = _made_with(session, experiment.id)
    sides = {arm.name: ArmRuns.of(arm, runs, devices, made_with) for arm in arms}
    measurement = MeasurementSpec.model_validate(experiment.spec["measurement"])
    asked = Asked(
        primary=primary_metric(experiment.spec["training"]["stop"]["kind"]),
        rounds=len({run.round for run in runs if run.state != RunState.SKIPPED}),
        seed=derived_seed(measurement.seed, "bootstrap"),
        precision=measurement.precision if precision is None else precision,
        energy_precision=measurement.energy_precision,
        evaluation_interval=TrainingSpec.model_validate(experiment.spec["training"]).evaluation_interval,
        level=SEQUENTIAL_LEVEL if measurement.rounds == "auto" else LEVEL,
    )
    return ComparisonView(
        experiment_id=experiment.id,
        experiment_state=experiment.state,
        baseline=baseline,
        primary_metric=asked.primary,
        rounds_planned=asked.rounds,
        precision=asked.precision,
        method=_common([run.method for run in runs]),
        scope=_common([run.scope for run in runs]),
        estimated=any(Flag.ESTIMATED in (run.flags or ()) for run in runs),
        arms=tuple(
            compare_arm(sides[arm.name], sides[baseline], asked) for arm in arms if arm.name != baseline
        ),
        final=ExperimentState(experiment.state).is_terminal,
        computed_at=now(session),
    )


def _made_with(session: Session, experiment_id: str) -> dict[int, MadeWith]:
    """What each run was made with, as its job told: file and limits may have changed between two starts."""
    told = session.execute(
        select(Run.key, ExperimentAttempt.environment)
        .join(Attempt, (Attempt.run_key == Run.key) & (Attempt.attempt == Run.attempt))
        .join(
            ExperimentAttempt,
            (ExperimentAttempt.experiment_id == Run.experiment_id)
            & (ExperimentAttempt.attempt == Attempt.experiment_attempt),
        )
        .where(Run.experiment_id == experiment_id)
    )
    return {key: MadeWith.of(environment) for key, environment in told}


def _arms(session: Session, experiment_id: str) -> Sequence[Arm]:
    return session.scalars(
        select(Arm)
        .where(Arm.experiment_id == experiment_id)
        .order_by(Arm.position)
        .options(defer(Arm.settings))
    ).all()


def _common(names: Sequence[str | None]) -> str | None:
    known = {each for each in names if each is not None}
    return None if not known else known.pop() if len(known) == 1 else MIXED


def _rows(experiment_id: str, arm_key: int, arm: ArmComparison) -> list[dict[str, Any]]:
    loss_differs = any(Flag.LOSS_DIFFERS in metric.flags for metric in arm.metrics)
    return [
        {
            "experiment_id": experiment_id,
            "arm_key": arm_key,
            "metric": metric.metric,
            "is_primary": metric.is_primary,
            "verdict": metric.verdict,
            "ratio": metric.ratio,
            "ratio_low": metric.ratio_low,
            "ratio_high": metric.ratio_high,
            "pairs": metric.pairs,
            "estimated": Flag.ESTIMATED in metric.flags,
            "loss_differs": loss_differs and not metric_named(metric.metric).of_target,
            "flags": [*metric.flags, *metric.blocking_flags],
            "sentence": metric.sentence,
        }
        for metric in arm.metrics
    ]
