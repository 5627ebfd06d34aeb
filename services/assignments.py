"""What a job is to make: the runs of its experiment that have not ended, numbered for this attempt."""

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.plan import Plan
from phantom_core.protocol import AssignedRun, Assignment, MadeRun
from services import heartbeats
from services.database import Database, now
from services.errors import NotFound
from services.metrics import metric_named, primary_metric
from services.moves import lock_experiment
from services.states import TERMINAL_RUN_STATES, ExperimentState, RunState
from services.tables import Arm, Attempt, Experiment, ExperimentAttempt, Run


def assignment(db: Database, experiment_id: str, data_roots: Sequence[Path] = ()) -> Assignment:
    """The work that is left; asking twice in one attempt gives the same answer, less what has ended since.

    Args:
        db: The database.
        experiment_id: Which experiment.
        data_roots: Folders under which a `file` task's path may lie.

    Raises:
        NotFound: There is no such experiment, or no attempt of it has begun.
    """
    service_urls = heartbeats.service_urls(db)
    with db.write() as session:
        experiment = lock_experiment(session, experiment_id)
        if experiment is None or experiment.attempt == 0:
            raise NotFound("started experiment", experiment_id)
        moment = now(session)
        job = session.get_one(ExperimentAttempt, (experiment_id, experiment.attempt))
        job.reached_at = job.reached_at or moment
        if not ExperimentState(experiment.state).is_terminal:
            job.ended_at = None  # given up with the lease, and it got through to the cluster all the same
        found = session.execute(
            select(Run, Arm.name)
            .join(Arm, Arm.key == Run.arm_key)
            .where(Run.experiment_id == experiment_id, Run.state.in_([RunState.QUEUED, RunState.RUNNING]))
            .order_by(Run.round, Run.position)
        ).all()
        numbered = set(
            session.execute(
                select(Attempt.run_key, Attempt.attempt)
                .join(Run, Run.key == Attempt.run_key)
                .where(Run.experiment_id == experiment_id, Attempt.experiment_attempt == experiment.attempt)
            )
        )
        for run, _ in found:
            if (run.key, run.attempt) not in numbered:
                run.attempt += 1
                session.add(
                    Attempt(
                        run_key=run.key,
                        attempt=run.attempt,
                        experiment_attempt=experiment.attempt,
                        assigned_at=moment,
                    )
                )
        return Assignment(
            experiment_id=experiment_id,
            attempt=experiment.attempt,
            plan=plan_of(experiment),
            runs=tuple(
                AssignedRun(
                    run_id=run.id,
                    attempt=run.attempt,
                    round=run.round,
                    position=run.position,
                    arm=arm,
                    seed=run.seed,
                )
                for run, arm in found
            ),
            made=_made(session, experiment),
            data_roots=tuple(str(root) for root in data_roots),
            service_urls=service_urls,
        )


def _made(session: Session, experiment: Experiment) -> tuple[MadeRun, ...]:
    """Runs that have ended, each with what the comparison rests on, where nothing forbids a verdict."""
    metric = metric_named(primary_metric(experiment.spec["training"]["stop"]["kind"]))
    ended = session.execute(
        select(Run, Arm.name)
        .join(Arm, Arm.key == Run.arm_key)
        .where(Run.experiment_id == experiment.id, Run.state.in_(TERMINAL_RUN_STATES - {RunState.SKIPPED}))
        .order_by(Run.round, Run.position)
    )
    return tuple(MadeRun(round=run.round, arm=arm, figure=metric.sound_figure(run)) for run, arm in ended)


def plan_of(experiment: Experiment) -> Plan:
    """The stored plan; a later version's `make_plan` might make another of the same spec."""
    return Plan.model_validate({**experiment.plan, "spec": experiment.spec})
