"""Common root of the answers, and pages of lists."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from phantom_core.described import describe


class View(BaseModel):
    """Frozen; a field's docstring is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe)


Item = TypeVar("Item")


class Page(View, Generic[Item]):
    """Part of a list."""

    items: tuple[Item, ...]
    """In order."""
    next_cursor: str | None
    """Pass it to get what follows; None at the end."""
