"""What Ray Train calls on every rank. Torch-free at import: driver and controller load this file too."""

from typing import Any

from phantom_core.protocol import Assignment
from ray_jobs.environment import JobEnvironment


def rank_main(config: dict[str, Any]) -> None:
    """Makes all runs of the assignment as one rank.

    Args:
        config: `job` (the job's environment variables), `assignment` (its JSON), `use_gpu`.
    """
    from ray_jobs.worker import work

    work(
        JobEnvironment.read(config["job"]),
        Assignment.model_validate_json(config["assignment"]),
        use_gpu=config["use_gpu"],
    )
