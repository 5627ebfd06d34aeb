"""The service with a fault in its code: `python -m tests.services.faulty_service serve`.

Asking Ray for a job raises what no code expects, if a line of the file that FAULTY_FOR names begins the job's id.
"""

import os
from pathlib import Path

from services.cluster import Cluster, JobStatus

_FILE = Path(os.environ["FAULTY_FOR"])
_ask = Cluster.status


def status(self: Cluster, job_id: str) -> JobStatus | None:
    """As the service's own, but for its fault."""
    if any(job_id.startswith(name) for name in _FILE.read_text().split()):
        raise TypeError("a fault of the service's own")
    return _ask(self, job_id)


if __name__ == "__main__":
    Cluster.status = status  # type: ignore[method-assign]
    from api.commands import commands

    commands()
