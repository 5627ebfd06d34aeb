"""The Ray job's entry point: `python -m ray_jobs.experiment`.

Fetches the assignment, starts one worker group as large as the largest arm, waits for it, and says how it
ended. The group may make further experiments, of which this process knows nothing (`rank_entry`). Neither this
process nor Ray Train's controller loads torch: only the ranks do, which saves seconds of every start (so
`DataParallelTrainer`, which `TorchTrainer` extends, and process groups made by the ranks themselves). Ray is
told of the job before Ray Train is loaded: it starts workers meanwhile.
"""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

import ray

from phantom_core.protocol import Assignment, GroupEnded, Reason
from phantom_core.tasks import TaskError
from ray_jobs.environment import GroupEnvironment, JobEnvironment, JobError, keep_to_this_process
from ray_jobs.group import tell_end
from ray_jobs.reporter import fetch_assignment

if TYPE_CHECKING:
    from ray_jobs.lean_trainer import LeanTrainer

log = logging.getLogger(__name__)

LAST_WORD_S = 120.0
"""Seconds for which the driver goes on trying to tell how the worker group ended."""
LONGEST_MESSAGE = 2_000


def main(environment: MutableMapping[str, str] = os.environ) -> int:
    """Runs the job; the exit code is Ray's verdict on it (0: every run was made, however it ended)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        job, group = JobEnvironment.read(environment), GroupEnvironment.read(environment)
        keep_to_this_process(environment)
        assignment = fetch_assignment(job)
        job, group = job.knowing(assignment.service_urls), group.knowing(assignment.service_urls)
    except JobError as error:
        log.error("%s", error)
        return 2
    told = _train(job, group, assignment)
    tell_end(group, told, LAST_WORD_S)
    return 0 if told.outcome == "succeeded" else 1


def _train(job: JobEnvironment, group: GroupEnvironment, assignment: Assignment) -> GroupEnded:
    try:
        ray.init(logging_level=logging.WARNING)
        with tempfile.TemporaryDirectory(prefix="ghostwatt-train-", ignore_cleanup_errors=True) as storage:
            _trainer(job, group, assignment, storage).fit()
    except KeyboardInterrupt:
        return GroupEnded(
            group_id=group.group_id,
            outcome="cancelled",
            reason=Reason.JOB_STOPPED,
            message="the Ray job was told to stop",
        )
    except Exception as error:
        log.exception("the worker group failed")
        reason, message = _judged(error)
        return GroupEnded(
            group_id=group.group_id, outcome="failed", reason=reason, message=message[:LONGEST_MESSAGE]
        )
    return GroupEnded(group_id=group.group_id, outcome="succeeded")


def _judged(error: Exception) -> tuple[Reason, str]:
    """The user's data are the user's to mend; everything else that ends a worker group is worth another try."""
    failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    for failure in failures.values():
        raised = getattr(failure, "_base_exc", failure)  # Ray wraps what a rank raised
        if isinstance(raised, TaskError):
            return Reason.TASK_ERROR, str(raised)
    return Reason.WORKER_LOST, (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _trainer(
    job: JobEnvironment, group: GroupEnvironment, assignment: Assignment, storage: str
) -> "LeanTrainer":
    import ray.train

    from ray_jobs.lean_trainer import LeanTrainer
    from ray_jobs.rank_entry import rank_main

    resources = assignment.plan.spec.resources
    ranks = assignment.plan.world_size
    gpus = ray.cluster_resources().get("GPU", 0)
    use_gpu = resources.device == "cuda" or (resources.device == "auto" and gpus >= ranks)
    return LeanTrainer(
        rank_main,
        train_loop_config={
            "job": job.variables(),
            "group": group.variables(),
            "assignment": assignment.model_dump_json(),
            "use_gpu": use_gpu,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=ranks,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": resources.cpus_per_rank, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=ray.train.RunConfig(
            # Ray resumes silently where it finds the same name again, so no start shares one.
            name=f"{assignment.experiment_id}.{assignment.attempt}.{time.time_ns()}",
            storage_path=storage,
            failure_config=ray.train.FailureConfig(max_failures=0),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
