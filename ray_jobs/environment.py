"""What the service tells a job through its environment: whom to report to, as whom, about what."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

SERVICE_URL = "GHOSTWATT_SERVICE_URL"
EXPERIMENT_ID = "GHOSTWATT_EXPERIMENT_ID"
INGEST_TOKEN = "GHOSTWATT_INGEST_TOKEN"  # noqa: S105 (the variable's name, not a token)

_SAFE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class JobError(Exception):
    """The job can't go on; the message says why and what to do."""


@dataclass(frozen=True)
class JobEnvironment:
    """Address, subject and credential of one job."""

    service_url: str
    """Base address of the service, such as `http://127.0.0.1:8411`."""
    experiment_id: str
    """Lower-case letters, digits and `-`: safe in paths and names."""
    token: str
    """Ingest token, good for this experiment only."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "JobEnvironment":
        """Reads it from environment variables.

        Raises:
            JobError: One is missing, or the id is not one that a service makes.
        """
        missing = [name for name in (SERVICE_URL, EXPERIMENT_ID, INGEST_TOKEN) if not environment.get(name)]
        if missing:
            raise JobError(f"{', '.join(missing)} not set; this program is started by Ghostwatt's service")
        experiment_id = environment[EXPERIMENT_ID]
        if not _SAFE_ID.fullmatch(experiment_id):
            raise JobError(f"{EXPERIMENT_ID} = {experiment_id!r} is no experiment id")
        return cls(environment[SERVICE_URL].rstrip("/"), experiment_id, environment[INGEST_TOKEN])

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            SERVICE_URL: self.service_url,
            EXPERIMENT_ID: self.experiment_id,
            INGEST_TOKEN: self.token,
        }
