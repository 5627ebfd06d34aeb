"""Windows as plain rows: a long run has thousands, and objects that the session watches are dear."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from services.tables import Attempt, Window


class WindowRow(NamedTuple):
    """What sums and samples need to know of a window; the fields are the table's."""

    key: int
    attempt: int
    run_key: int | None
    device_key: int
    experiment_attempt: int
    source: str
    seq: int
    phase: str
    number: int
    charged: bool
    started_monotonic_s: float
    duration_s: float
    steps: int
    samples: int
    energy_mj: float | None
    uncertainty_mj: float | None
    method: str | None
    scope: str | None
    reason: str | None
    flags: list[str] | None
    integral_mj: float | None
    integral_uncertainty_mj: float | None
    sample_count: int
    largest_gap_s: float | None
    seen_flags: list[str] | None

    @property
    def ended_monotonic_s(self) -> float:
        """End of the window, on the clock of the device's host."""
        return self.started_monotonic_s + self.duration_s


class Span(NamedTuple):
    """Stretch of one device's time in which something new arrived."""

    device_key: int
    experiment_attempt: int
    start_s: float
    end_s: float


_COLUMNS = [getattr(Window, name) for name in WindowRow._fields]


def window_rows(session: Session, *conditions: ColumnElement[bool]) -> Sequence[WindowRow]:
    """All windows that meet the conditions, which may name attempts' columns besides windows'."""
    return [WindowRow._make(row) for row in session.execute(select(*_COLUMNS).where(*conditions))]


def windows_of(session: Session, attempts: Iterable[Attempt]) -> list[WindowRow]:
    """All windows of some attempts."""
    return [
        window
        for attempt in attempts
        for window in window_rows(
            session, Window.run_key == attempt.run_key, Window.attempt == attempt.attempt
        )
    ]
