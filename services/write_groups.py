"""One thread that writes what many callers bring: whatever waits while it writes goes into the next transaction.

A transaction that is durable costs a wait for the disk, whatever it holds. Callers that come at the same time share
that wait; one who comes alone waits for nobody else.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from services.errors import DatabaseUnavailable

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class _Waiting(Generic[Item, Outcome]):
    item: Item
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Outcome]"


_Told = tuple[_Waiting[Item, Outcome], Outcome | Exception]


class WriteGroups(Generic[Item, Outcome]):
    """Writes items in groups; a context manager that is used by coroutines."""

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[Item]], Sequence[Outcome]],
        *,
        most_together: int,
        most_rows: int,
        rows_of: Callable[[Item], int],
    ) -> None:
        """Begins.

        Args:
            name: Of the thread.
            write: Writes items, and gives an outcome for each once all of it is durable; where it raises, nothing of
                it was written.
            most_together: Items in one transaction.
            most_rows: Rows after which no other item joins a transaction: others want to write, too.
            rows_of: How many rows an item has.
        """
        self._write = write
        self._most_together, self._most_rows, self._rows_of = most_together, most_rows, rows_of
        self._gathered: list[_Waiting[Item, Outcome]] = []
        """What came since an event loop last looked for requests."""
        self._waiting: queue.SimpleQueue[_Waiting[Item, Outcome] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._door = threading.Lock()
        """Held where something is put in line: nothing comes after the end."""
        # A service that is killed in between has said nothing to anybody yet.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def write(self, item: Item) -> Outcome:
        """Writes an item.

        Returns:
            What came of it, once that is durable.

        Raises:
            DatabaseUnavailable: The database can't be reached, or stayed locked, or the service ends.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        with self._door:
            if self._is_closed:
                raise _ending()
            is_first = not any(waiting.loop is loop for waiting in self._gathered)
            self._gathered.append(_Waiting(item, loop, answer))
        if is_first:
            # In between the loop looks for requests once and answers them: what has come already is written, too.
            loop.call_soon(loop.call_soon, self._send)
        return await answer

    def close(self) -> None:
        """Writes what waits, then ends; safe to call twice. With the database away nothing waits for it twice."""
        with self._door:
            if not self._is_closed:
                self._is_closed = True
                self._put_gathered()
                self._waiting.put(None)
        self._thread.join()

    def _send(self) -> None:
        with self._door:
            self._put_gathered()

    def _put_gathered(self) -> None:
        for waiting in self._gathered:
            self._waiting.put(waiting)
        self._gathered.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        is_over = is_lost = False
        while not is_over:
            group, is_over = self._next_group()
            told = [(waiting, _ending()) for waiting in group] if is_lost else self._written(group)
            is_lost = is_lost or (
                self._is_closed and any(isinstance(each, DatabaseUnavailable) for _, each in told)
            )
            _deliver(told)

    def _next_group(self) -> tuple[list[_Waiting[Item, Outcome]], bool]:
        """What is written next, and whether nothing comes after it."""
        group: list[_Waiting[Item, Outcome]] = []
        rows = 0
        while len(group) < self._most_together and rows < self._most_rows:
            try:
                waiting = self._waiting.get(block=not group)
            except queue.Empty:
                break
            if waiting is None:
                return group, True
            if waiting.answer.done():
                continue  # whoever waited has gone away: nobody would learn of it
            group.append(waiting)
            rows += self._rows_of(waiting.item)
        return group, False

    def _written(self, group: Sequence[_Waiting[Item, Outcome]]) -> list[_Told[Item, Outcome]]:
        if not group:
            return []
        try:
            outcomes = self._write([waiting.item for waiting in group])
        except DatabaseUnavailable as error:
            # Each its own: an exception that several raise would gather all their tracebacks.
            return [(waiting, error.again()) for waiting in group]
        except Exception as error:
            if len(group) == 1:
                return [(group[0], error)]
            # Nothing was written. One of them can't be: the others must not pay for it.
            return [told for waiting in group for told in self._written([waiting])]
        return list(zip(group, outcomes, strict=True))


def _ending() -> DatabaseUnavailable:
    return DatabaseUnavailable("the service is ending; send it again")


def _deliver(told: Sequence[_Told[Item, Outcome]]) -> None:
    for loop in {waiting.loop for waiting, _ in told}:
        try:
            loop.call_soon_threadsafe(_answer, [each for each in told if each[0].loop is loop])
        except RuntimeError:
            # The loop has ended, and with it whoever waited.
            continue


def _answer(told: Sequence[_Told[Item, Outcome]]) -> None:
    for waiting, outcome in told:
        if waiting.answer.done():
            continue  # whoever waited was cancelled
        if isinstance(outcome, Exception):
            waiting.answer.set_exception(outcome)
        else:
            waiting.answer.set_result(outcome)
