"""The service with a fault in its code: `python -m tests.services.faulty_service serve`.

Asking Ray for a job raises what no code expects, if a line of the file that FAULTY_FOR names begins the job's id; so
does asking for what the cluster has, if the file names `capacity`.
"""

import os
from pathlib import Path

from phantom_core.capacity import Capacity
from services import settings
from services.cluster import Cluster, JobStatus

_FILE = Path(os.environ["FAULTY_FOR"])
_ask = Cluster.status
_measure = Cluster.capacity


def status(self: Cluster, job_id: str) -> JobStatus | None:
    """As the service's own, but for its fault."""
    if any(job_id.startswith(name) for name in _FILE.read_text().split()):
        raise TypeError("a fault of the service's own")
    return _ask(self, job_id)


def capacity(self: Cluster) -> Capacity:
    """As the service's own, but for its fault."""
    if "capacity" in _FILE.read_text().split():
        raise TypeError("a fault of the service's own, with a secret in its words")
    return _measure(self)


if __name__ == "__main__":
    Cluster.status = status  # type: ignore[method-assign]
    Cluster.capacity = capacity  # type: ignore[method-assign]
    settings.SHORTEST_SILENCE_S = 1.0  # simulated jobs need no longer one
    from api.commands import commands

    commands()
