"""A list that the service gives page by page, as one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item", covariant=True)


class Page(Protocol[Item]):
    """Part of a list."""

    @property
    def items(self) -> Sequence[Item]:
        """What is in it."""

    @property
    def next_cursor(self) -> str | None:
        """Leads to the next part; None after the last."""


def paged(
    ask: Callable[[str | None, int], Page[Item]], limit: int | None, *, page_size: int = 100
) -> Iterator[Item]:
    """The items of a list, each page fetched when it is reached.

    Args:
        ask: Fetches one page; given a cursor (None for the first page) and how many items are wanted.
        limit: At most so many items; None for all.
        page_size: Most items of one page.
    """
    cursor, left = None, limit
    while left is None or left > 0:
        page = ask(cursor, page_size if left is None else min(left, page_size))
        yield from page.items
        left = None if left is None else left - len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return
