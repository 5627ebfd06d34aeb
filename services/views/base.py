"""Common root of the answers, and pages of lists."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """Frozen; a field's docstring is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Item = TypeVar("Item")


class Page(View, Generic[Item]):
    """Part of a list."""

    items: tuple[Item, ...]
    """In order."""
    next_cursor: str | None
    """Pass it to get what follows; None at the end."""
