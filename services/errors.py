"""What services refuse, and why; the messages are for the person who asked.

ServiceError
|-- SpecError            a spec can't be run as it is; carries one problem per wrong field
|-- NotFound             no experiment, run or key of that id
|-- IdempotencyConflict  the idempotency key was used for another request
|-- QueryError           a filter, sort or cursor that can't be used
|-- NotComparable        the asked comparison can't exist (no such arm)
|-- KeyRefused           no such API key, revoked or expired
|   `-- KeyLacksScope    ... or valid, but for something else
|-- LeaseLost            another process owns the experiment now
`-- DatabaseError
    |-- DatabaseUnavailable   it can't be reached, or is locked for longer than the limit
    |   `-- DatabaseHeld      ... by another process, which SQLite can't overrule
    `-- MigrationNeeded       its tables are not those of this version
"""

from collections.abc import Sequence

from phantom_core.spec import SpecModel


class Problem(SpecModel):
    """One thing that is wrong with a spec, or worth knowing before it runs."""

    field: str
    """Where: a dotted path such as `arms.1.ghosts`."""
    message: str
    """What the value is, what the limit is, and the way out."""
    value: str | None = None
    """The value, as text."""
    limit: str | None = None
    """What it may be, as text; None if there is no one number for it."""


class ServiceError(Exception):
    """A service can't do what was asked; the message says what to do about it."""


class SpecError(ServiceError):
    """A spec can't be run as it is."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        """What is wrong, one entry for each."""
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in problems))


class NotFound(ServiceError):
    """Nothing has that id."""

    def __init__(
        self, noun: str, identifier: str, why: str = "it may have been deleted, or never existed"
    ) -> None:
        self.noun = noun
        """`experiment`, `run`, `arm` or `API key`."""
        super().__init__(f"there is no {noun} {identifier!r}; {why}")


class IdempotencyConflict(ServiceError):
    """The idempotency key was used for another request."""

    def __init__(self, key: str, experiment_id: str) -> None:
        self.experiment_id = experiment_id
        """What the first request with the key made."""
        super().__init__(
            f"the key {key!r} belongs to another request, which made {experiment_id}; take a new key"
        )


class QueryError(ServiceError):
    """A filter, sort or cursor that can't be used."""


class NotComparable(ServiceError):
    """The asked comparison can't exist."""


class KeyRefused(ServiceError):
    """The API key opens nothing here."""


class KeyLacksScope(KeyRefused):
    """The API key is valid, but not for this."""


class LeaseLost(ServiceError):
    """Another process owns the experiment now, or it has ended; stop working on it."""


class DatabaseError(ServiceError):
    """The database can't be used."""


class DatabaseUnavailable(DatabaseError):
    """The database can't be reached, or was locked for longer than the limit."""

    def again(self) -> "DatabaseUnavailable":
        """The same, for another who waited."""
        return DatabaseUnavailable(str(self))


class DatabaseHeld(DatabaseUnavailable):
    """Another process has held SQLite's write lock for longer than the limit."""

    def __init__(self, holder: str, cause: str) -> None:
        self.told = (
            f"another process holds the database: nothing can be written until {holder} goes on or ends "
            "(docs/faults.md)"
        )
        """What everybody may know of it."""
        self._holder, self._cause = holder, cause
        super().__init__(f"{self.told}: {cause}")

    def again(self) -> "DatabaseHeld":
        """The same, for another who waited."""
        return DatabaseHeld(self._holder, self._cause)


class MigrationNeeded(DatabaseError):
    """The database's tables are not those of this version."""
