"""Everything that a person can set about the service, from the environment; each has a default and a unit."""

import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from phantom_core.base_address import problem_of
from phantom_core.described import describe
from phantom_core.signs import SIGN_S
from services.scrubbing import scrubbed

PREFIX = "GHOSTWATT_"
"""Start of every variable's name; the rest is the field's name in upper case."""

CLIENT_VARIABLES = frozenset({"GHOSTWATT_URL", "GHOSTWATT_API_KEY"})
"""Read by the `ghostwatt` command; they set nothing here, but are no mistake either."""

SHORTEST_SILENCE_S = 2 * SIGN_S
"""A shorter one would end jobs that live: one sign may be late by nearly as long as it takes."""

SEPARATORS = {"data_roots": os.pathsep, "allowed_hosts": ","}
"""What stands between the parts of settings that are lists."""


class SettingsError(ValueError):
    """A setting can't be used; the message names the variable, its value and what it may be."""


def _database_in(data: dict[str, Any]) -> str:
    return f"sqlite:///{data['data_dir']}/ghostwatt.sqlite3" if "data_dir" in data else ""


def _roots_in(data: dict[str, Any]) -> tuple[Path, ...]:
    return (data["data_dir"] / "data",) if "data_dir" in data else ()


def _address(data: dict[str, Any]) -> str:
    host = data.get("host", "127.0.0.1")
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    bracketed = f"[{reachable}]" if ":" in reachable else reachable
    return f"http://{bracketed}:{data.get('port', 8411)}"


class Settings(BaseModel):
    """Frozen settings; `GHOSTWATT_PORT=9000` sets `port`, and so on for every field."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra=describe,
        hide_input_in_errors=True,
        validate_default=True,
    )

    data_dir: Path = Path("~/.local/share/ghostwatt")
    """Folder for everything that the service keeps: database, spools, logs, Ray's files. `~` is expanded."""
    database_url: str = Field(default_factory=_database_in, repr=False)
    """`sqlite:///<path>` or `postgresql+psycopg://user:password@host/name`; default: a file in `data_dir`."""
    host: str = "127.0.0.1"
    """Address that the service listens on."""
    port: int = Field(8411, ge=0, le=65_535)
    """Port that it listens on; 0 lets the system choose."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the Host header may hold besides loopback's, separated by commas; empty allows the bound
    address on loopback, and any name elsewhere, where every request needs a key. One that people reach by TLS, through
    a proxy, is given as an address: `https://ghostwatt.example`; only then may pages of it change anything."""
    require_keys: bool = False
    """Whether requests on loopback need an API key too; on any other address they always do."""
    service_url: str = Field(default_factory=_address)
    """Address at which jobs reach the service; default: from `host` and `port`."""
    ray_address: str | None = None
    """Jobs address of a Ray cluster, such as `http://head:8265`; `RAY_ADDRESS` sets it too.

    None starts a head for this service alone."""
    ray_python: str = sys.executable
    """Interpreter on the cluster's machines that has Ghostwatt installed, as an absolute path."""
    ray_max_active: int = Field(1, ge=1, le=1_000)
    """Experiments in the cluster at a time; more than one only where they share no board."""
    data_roots: tuple[Path, ...] = Field(default_factory=_roots_in)
    """Folders that a `file` task's path may lie in, separated as in PATH; default: `data` in `data_dir`."""
    lease_ttl_s: float = Field(30.0, gt=0, le=3_600)
    """Seconds after which an experiment whose dispatcher has gone silent is taken over by another; the same for all
    services of one database."""
    poll_interval_s: float = Field(1.0, gt=0, le=60)
    """Seconds between two looks at the queue and at running jobs."""
    silence_deadline_s: float = Field(180.0, gt=0, le=86_400)
    """Seconds without a sign of its ranks after which a running experiment's job counts as dead; at least 40. They give
    one every 20 s, so under a minute a living job on a busy machine can look dead."""
    attempts: int = Field(2, ge=1, le=10)
    """Starts of an experiment at most; more than one only after faults of the infrastructure."""
    keep_group_s: float = Field(60.0, ge=0, le=3_600)
    """Seconds for which the worker group of a finished experiment stays for the next one that fits it; 0 for not
    at all. It holds its boards meanwhile, unless an experiment that doesn't fit it waits for them."""
    power_retention_days: float | None = Field(None, gt=0, le=36_500)
    """Days for which power samples are kept after an experiment's end; None keeps them. Summaries stay."""

    log_format: Literal["text", "json"] = "text"
    """How the service's log is written: `text` for people, `json` for one object a line."""

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        return folder.expanduser().absolute()

    @field_validator("data_roots")
    @classmethod
    def _absolute_roots(cls, folders: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(folder.expanduser().absolute() for folder in folders)

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url.startswith("postgresql://"):
            return "postgresql+psycopg://" + url.removeprefix("postgresql://")
        if url.startswith(("postgresql+psycopg://", "sqlite:///")):
            return url
        raise ValueError("database_url starts with neither sqlite:/// nor postgresql+psycopg://")

    @field_validator("service_url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        problem = problem_of(url)
        # The system's choice of a port stands in the address only once it is known.
        if problem is not None and not url.endswith(":0"):
            raise ValueError(
                f"service_url is no address, such as http://host:8411, that jobs can ask: {problem}"
            )
        return url

    @model_validator(mode="after")
    def _lease_outlives_polls(self) -> Self:
        if self.lease_ttl_s < 3 * self.poll_interval_s:
            raise ValueError(
                f"lease_ttl_s = {self.lease_ttl_s:g} is shorter than three poll intervals "
                f"({self.poll_interval_s:g} s each); raise it or lower poll_interval_s"
            )
        return self

    @model_validator(mode="after")
    def _silence_outlasts_signs(self) -> Self:
        if self.silence_deadline_s < SHORTEST_SILENCE_S:
            raise ValueError(
                f"silence_deadline_s = {self.silence_deadline_s:g} is less than {SHORTEST_SILENCE_S:g}: living ranks "
                f"give a sign every {SIGN_S:g} s only, and would be taken for dead; raise it to "
                f"{SHORTEST_SILENCE_S:g} or more"
            )
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the settings.

        Args:
            environment: Usually `os.environ`. A `GHOSTWATT_*` name that nearly is a setting's is refused:
                one that silently does nothing is worse than a start that fails. Others are not looked at.

        Raises:
            SettingsError: A variable is misspelt or its value can't be used.
        """
        values: dict[str, Any] = {}
        if environment.get("RAY_ADDRESS"):
            values["ray_address"] = environment["RAY_ADDRESS"]
        for variable, value in environment.items():
            if not variable.startswith(PREFIX) or variable in CLIENT_VARIABLES:
                continue
            name = variable.removeprefix(PREFIX).lower()
            if name not in cls.model_fields:
                meant = difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=0.85)
                if meant:
                    raise SettingsError(f"{variable} is no setting; is {PREFIX}{meant[0].upper()} meant?")
                continue
            if value == "":
                continue
            separator = SEPARATORS.get(name)
            values[name] = tuple(filter(None, value.split(separator))) if separator else value
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(_sentences(error, values)) from None


def variables(settings: type[Settings] = Settings) -> list[str]:
    """Names of the variables that set something, in the fields' order."""
    return [PREFIX + name.upper() for name in settings.model_fields]


def _sentences(error: ValidationError, values: Mapping[str, Any]) -> str:
    sentences = []
    for problem in error.errors(include_url=False, include_input=False):
        if problem["type"] == "default_factory_not_called":
            continue  # it waits for what another sentence says
        name = str(problem["loc"][0]) if problem["loc"] else ""
        if not name:
            sentences.append(problem["msg"])
            continue
        # A database URL may hold a password, so it is named but not repeated; other addresses should hold none.
        shown = "" if name == "database_url" or name not in values else f" = {scrubbed(repr(values[name]))}"
        sentences.append(f"{PREFIX}{name.upper()}{shown}: {problem['msg']}")
    return "; ".join(sentences)
