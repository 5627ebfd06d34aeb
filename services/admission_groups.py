"""One thread that writes what is submitted: whatever waits while it writes goes into the next transaction together.

A transaction that is durable costs a wait for the disk, whatever it holds. Callers that submit at the same time share
that wait; one who submits alone waits for nobody else.
"""

import asyncio
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from services.admission_writes import admit
from services.admissions import Admission
from services.database import Database
from services.errors import DatabaseUnavailable

MOST_TOGETHER = 32
"""Submissions in one transaction."""
MOST_ROWS = 2_000
"""Rows after which no other submission joins a transaction: others want to write, too."""


@dataclass(frozen=True)
class _Waiting:
    admission: Admission
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[bool]"


_Outcome = tuple[_Waiting, bool | Exception]


class AdmissionGroups:
    """Writes submissions in groups; a context manager that is used by coroutines."""

    def __init__(self, database: Database) -> None:
        """Begins.

        Args:
            database: Where to.
        """
        self._database = database
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._is_closed = False
        self._door = threading.Lock()
        """Held where something is put in line: nothing comes after the end."""
        # A service that is killed in between has said nothing to anybody yet.
        self._thread = threading.Thread(target=self._work, name="admissions", daemon=True)
        self._thread.start()

    async def write(self, admission: Admission) -> bool:
        """Writes a submission.

        Returns:
            Whether it was written, and is durable; False if its key is another submission's.

        Raises:
            DatabaseUnavailable: The database can't be reached, or stayed locked, or the service ends.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        with self._door:
            if self._is_closed:
                raise _ending()
            self._waiting.put(_Waiting(admission, loop, answer))
        return await answer

    def close(self) -> None:
        """Writes what waits, then ends; safe to call twice. With the database away nothing waits for it twice."""
        with self._door:
            if not self._is_closed:
                self._is_closed = True
                self._waiting.put(None)
        self._thread.join()

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
            outcomes = [(waiting, _ending()) for waiting in group] if is_lost else self._written(group)
            is_lost = is_lost or (
                self._is_closed and any(isinstance(each, DatabaseUnavailable) for _, each in outcomes)
            )
            _deliver(outcomes)

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """What is written next, and whether nothing comes after it."""
        group: list[_Waiting] = []
        rows = 0
        while len(group) < MOST_TOGETHER and rows < MOST_ROWS:
            try:
                waiting = self._waiting.get(block=not group)
            except queue.Empty:
                break
            if waiting is None:
                return group, True
            if waiting.answer.done():
                continue  # whoever waited has gone away: nobody would learn of it
            group.append(waiting)
            rows += waiting.admission.rows
        return group, False

    def _written(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        if not group:
            return []
        try:
            written = admit(self._database, [waiting.admission for waiting in group])
        except DatabaseUnavailable as error:
            # Each its own: an exception that several raise would gather all their tracebacks.
            return [(waiting, DatabaseUnavailable(str(error))) for waiting in group]
        except Exception as error:
            if len(group) == 1:
                return [(group[0], error)]
            # Nothing was written. One of them can't be: the others must not pay for it.
            return [outcome for waiting in group for outcome in self._written([waiting])]
        return [(waiting, waiting.admission.id in written) for waiting in group]


def _ending() -> DatabaseUnavailable:
    return DatabaseUnavailable("the service is ending; submit again")


def _deliver(outcomes: Sequence[_Outcome]) -> None:
    for loop in {waiting.loop for waiting, _ in outcomes}:
        try:
            loop.call_soon_threadsafe(_answer, [each for each in outcomes if each[0].loop is loop])
        except RuntimeError:
            # The loop has ended, and with it whoever waited.
            continue


def _answer(outcomes: Sequence[_Outcome]) -> None:
    for waiting, outcome in outcomes:
        if waiting.answer.done():
            continue  # whoever waited was cancelled
        if isinstance(outcome, Exception):
            waiting.answer.set_exception(outcome)
        else:
            waiting.answer.set_result(outcome)
