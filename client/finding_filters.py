"""What to find among the findings, as Python values and as a query."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from client.http import Parameter


class FindingFilters(TypedDict, total=False):
    """What to find; see `GET /v1/findings`."""

    metric: str | None
    verdict: Sequence[str]
    saving_at_least: float | None
    strategy: str | None
    width_at_least: int | None
    width_at_most: int | None
    world_size: int | None
    dtype: str | None
    board: str | None
    tag: Sequence[str]
    equal_loss: bool
    measured: bool
    submitted_after: datetime | None
    submitted_before: datetime | None
    order: str


def as_query(filters: FindingFilters) -> dict[str, Parameter]:
    """Filters as the parameters of a query; what is None or false asks for nothing."""
    return {name: _parameter(value) for name, value in filters.items()}


def _parameter(value: object) -> Parameter:
    match value:
        case bool():
            return "true" if value else None
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [str(item) for item in value]
        case None:
            return None
        case _:
            return str(value)
