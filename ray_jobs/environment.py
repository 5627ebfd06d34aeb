"""What the service tells a job through its environment: whom to report to, as whom, about what."""

import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from phantom_core.base_address import problem_of
from phantom_core.protocol import JobVariable

RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable in which Ray's job server gives a driver the job's `runtime_env`."""

MOST_ADDRESSES = 16
"""Of services that a job remembers."""

_SAFE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SAFE_GROUP_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,119}")  # an experiment's, with the attempt's number


class JobError(Exception):
    """The job can't go on; the message says why and what to do."""


@dataclass(frozen=True)
class _Reaching:
    """Where services are."""

    service_url: str
    """Base address of the job's own service, such as `http://127.0.0.1:8411`."""
    other_urls: tuple[str, ...] = field(default=(), kw_only=True)
    """Addresses of other services of the same database."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, its own service's first."""
        return addresses(self.service_url, self.other_urls)

    def knowing(self, urls: Iterable[str]) -> Self:
        """The same, with these addresses before the others."""
        return replace(self, other_urls=addresses(self.service_url, urls, self.other_urls)[1:])


@dataclass(frozen=True)
class JobEnvironment(_Reaching):
    """Address, subject and credential of one job."""

    experiment_id: str
    """Lower-case letters, digits and `-`: safe in paths and names."""
    token: str = field(repr=False)
    """Ingest token, good for this experiment only."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "JobEnvironment":
        """Reads it from environment variables.

        Raises:
            JobError: One is missing, or the id is not one that a service makes.
        """
        url, experiment_id, token = _read(
            environment, JobVariable.SERVICE_URL, JobVariable.EXPERIMENT_ID, JobVariable.INGEST_TOKEN
        )
        _check(JobVariable.EXPERIMENT_ID, experiment_id, _SAFE_ID)
        return cls(url.rstrip("/"), experiment_id, token, other_urls=_other_urls(environment, url))

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            JobVariable.SERVICE_URL.value: self.service_url,
            JobVariable.SERVICE_URLS.value: " ".join(self.other_urls),
            JobVariable.EXPERIMENT_ID.value: self.experiment_id,
            JobVariable.INGEST_TOKEN.value: self.token,
        }


@dataclass(frozen=True)
class GroupEnvironment(_Reaching):
    """Address and credential of a worker group, which may make several experiments."""

    group_id: str
    """The Ray job's id."""
    token: str = field(repr=False)
    """Good only for asking for the next experiment, and for saying that the group has ended."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "GroupEnvironment":
        """Reads it from environment variables.

        Raises:
            JobError: One is missing, or the id is not one that a service makes.
        """
        url, group_id, token = _read(
            environment, JobVariable.SERVICE_URL, JobVariable.GROUP_ID, JobVariable.GROUP_TOKEN
        )
        _check(JobVariable.GROUP_ID, group_id, _SAFE_GROUP_ID)
        return cls(url.rstrip("/"), group_id, token, other_urls=_other_urls(environment, url))

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            JobVariable.SERVICE_URL.value: self.service_url,
            JobVariable.SERVICE_URLS.value: " ".join(self.other_urls),
            JobVariable.GROUP_ID.value: self.group_id,
            JobVariable.GROUP_TOKEN.value: self.token,
        }


def addresses(own: str, *found: Iterable[str]) -> tuple[str, ...]:
    """Base addresses of services in that order, each once, and not more than `MOST_ADDRESSES`.

    Another service's loopback address leads to who knows whom on this host, unless the job's own service is there too.

    Args:
        own: The job's own service's, which comes first.
        found: Others.
    """
    others = (
        url.rstrip("/")
        for urls in found
        for url in urls
        if problem_of(url) is None and (_is_loopback(own) or not _is_loopback(url))
    )
    return tuple(dict.fromkeys((own.rstrip("/"), *others)))[:MOST_ADDRESSES]


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keep_to_this_process(environment: MutableMapping[str, str]) -> None:
    """Takes the job's variables out of what the driver's actors inherit, and out of the driver's own environment.

    Ray hands a job's `runtime_env` on to every actor of it. These need none of ours: ranks and samplers are given
    addresses and tokens as arguments. And actors that ask for no environment of their own take processes that Ray has
    started already, instead of waiting for new ones.

    Args:
        environment: The driver's, before `ray.init`.
    """
    for name in JobVariable:
        environment.pop(name.value, None)
    if RAY_JOB_CONFIG not in environment:
        return
    config = json.loads(environment[RAY_JOB_CONFIG])
    runtime_env = config.get("runtime_env") or {}
    variables = runtime_env.pop("env_vars", None) or {}
    left = {name: value for name, value in variables.items() if name not in set(JobVariable)}
    config["runtime_env"] = runtime_env | ({"env_vars": left} if left else {})
    environment[RAY_JOB_CONFIG] = json.dumps(config)


def _other_urls(environment: Mapping[str, str], own: str) -> tuple[str, ...]:
    return addresses(own, environment.get(JobVariable.SERVICE_URLS, "").split())[1:]


def _read(environment: Mapping[str, str], *names: JobVariable) -> list[str]:
    missing = [name.value for name in names if not environment.get(name)]
    if missing:
        raise JobError(f"{', '.join(missing)} not set; this program is started by Ghostwatt's service")
    return [environment[name] for name in names]


def _check(name: JobVariable, value: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(value):
        raise JobError(f"{name.value} = {value!r} is no id that a service makes")
