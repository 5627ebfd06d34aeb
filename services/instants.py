"""Which moments and spans of time are taken from outside: those that no time zone, sum or database fails at."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime

YEARS = range(1970, 9_000)
"""Of a moment in its own time zone, so that it has a year in every other, too."""
LONGEST_S = 1e9
"""Thirty years: no host has been up for longer, and no window has lasted so long."""


def is_instant(moment: datetime) -> bool:
    """Whether a moment is one that can be stored and calculated with."""
    return moment.year in YEARS


def is_span(seconds: float) -> bool:
    """Whether so many seconds, by a monotonic clock or between two of its readings, can be; NaN can't."""
    return -LONGEST_S <= seconds <= LONGEST_S


def _checked(moment: datetime) -> datetime:
    if not is_instant(moment):
        raise ValueError(f"give a time between the years {YEARS.start} and {YEARS.stop - 1}")
    return moment


Instant = Annotated[AwareDatetime, AfterValidator(_checked)]
"""A moment of a request."""
