"""Event streams: any number of watchers, one look at the database for all of them.

One task per process (`Streams`) asks every half second which of the watched experiments changed, in a single query,
and reads what is new of those once. What it read is encoded once and kept for a while (`Topic`); a watcher is a cursor
into that. So a watcher costs no query, no session and no queue while it waits; one that is slow, or comes back with a
`Last-Event-ID`, reads what it missed from the log, page by page. Nothing is remembered between processes: any of them
can go on where another one stopped.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from anyio import to_thread
from fastapi.sse import format_sse_event

from api.errors import ApiError
from services import watching
from services.database import Database
from services.errors import ServiceError
from services.views import Occurrence

log = logging.getLogger("ghostwatt.api")

HEARTBEAT = format_sse_event(comment="heartbeat")
OPENING = format_sse_event(retry=1_000)
DELETED = format_sse_event(event="deleted", data_str="{}")


@dataclass(frozen=True)
class Limits:
    """How much watching costs at most."""

    interval_s: float = 0.5
    """Seconds between two looks at the database."""
    heartbeat_s: float = 15.0
    """Longest silence on a stream."""
    lifetime_s: float = 900.0
    """Seconds after which a stream ends, so that its watcher comes back and shows its key again."""
    streams: int = 500
    """Most streams of this process."""
    streams_per_caller: int = 100
    """Most streams of one caller."""
    kept_bytes: int = 65_536
    """Most that is kept of one experiment for those who wait; slower ones read the log."""


class TooManyStreams(ApiError):
    """503, or 429 where one caller has them all."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, "too-many-streams", detail, headers={"Retry-After": "5"})


@dataclass
class Topic:
    """One watched experiment."""

    known: watching.Known
    """What the poller has seen of it."""
    floor: int
    """`kept` holds what came after this id, up to `known.last`."""
    watchers: int = 0
    """Streams that follow it."""
    gone: bool = False
    """Whether it was deleted."""
    kept: deque[tuple[Occurrence, bytes]] = field(default_factory=deque)
    """The latest occurrences, encoded."""
    kept_bytes: int = 0
    """Their length."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, with every change."""

    def tell(self) -> None:
        """Wakes everybody who waits."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Streams:
    """All streams of this process; an async context manager, entered in the loop that serves them."""

    def __init__(
        self,
        database: Database,
        limits: Limits | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: where the log is, what it may cost, a monotonic clock."""
        self._database = database
        self._limits = limits or Limits()
        self._clock_s = clock_s
        self._topics: dict[str, Topic] = {}
        self._callers: dict[str, int] = {}
        self._wanted = asyncio.Event()
        self._closing = False
        self._poller: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._poller = asyncio.create_task(self._poll(), name="event streams")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        assert self._poller is not None
        self._poller.cancel()
        with suppress(asyncio.CancelledError):
            await self._poller

    @property
    def count(self) -> int:
        """Streams that are open."""
        return sum(self._callers.values())

    def close(self) -> None:
        """Ends every stream at once, and lets none begin: the server is about to wait for them."""
        self._closing = True
        for topic in self._topics.values():
            topic.tell()

    async def open(self, caller: str, experiment_id: str, after: int) -> "Stream | None":
        """Begins a stream.

        Args:
            caller: Who watches, to count what each has.
            experiment_id: What is watched.
            after: Id of the last occurrence that the watcher knows; 0 begins at the start of the log.

        Returns:
            The stream, which must be released; None if nothing will ever follow `after`.

        Raises:
            NotFound: There is no such experiment.
            QueryError: `after` is no occurrence of it.
            TooManyStreams: No more are served.
        """
        self._admit(caller)
        try:
            position = await to_thread.run_sync(watching.position, self._database, experiment_id, after)
        except BaseException:
            self._dismiss(caller)
            raise
        if position.end is not None and after >= position.end:
            self._dismiss(caller)
            return None
        topic = self._topics.get(experiment_id)
        if topic is None or topic.gone:
            topic = Topic(watching.Known(position.version, position.last), floor=position.last)
            self._topics[experiment_id] = topic
        topic.watchers += 1
        self._wanted.set()
        return Stream(self, caller, experiment_id, topic, after)

    def _admit(self, caller: str) -> None:
        if self._closing:
            raise TooManyStreams(503, "the service is ending; come back in a moment")
        if self.count >= self._limits.streams:
            raise TooManyStreams(
                503, f"{self._limits.streams} event streams are open already; poll, or try later"
            )
        if self._callers.get(caller, 0) >= self._limits.streams_per_caller:
            raise TooManyStreams(
                429, f"one caller may have {self._limits.streams_per_caller} event streams; end one first"
            )
        self._callers[caller] = self._callers.get(caller, 0) + 1

    def _dismiss(self, caller: str) -> None:
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _release(self, stream: "Stream") -> None:
        self._dismiss(stream.caller)
        stream.topic.watchers -= 1
        if not stream.topic.watchers and self._topics.get(stream.experiment_id) is stream.topic:
            del self._topics[stream.experiment_id]

    async def _poll(self) -> None:
        while True:
            if not self._topics:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._look()
            except ServiceError as error:
                log.warning("event streams: %s", error)
            except Exception:
                log.exception("event streams: a look failed; going on")
            await asyncio.sleep(self._limits.interval_s)

    async def _look(self) -> None:
        topics = dict(self._topics)
        known = {identifier: topic.known for identifier, topic in topics.items() if not topic.gone}
        for identifier, change in (await to_thread.run_sync(watching.changes, self._database, known)).items():
            self._apply(topics[identifier], change)

    def _apply(self, topic: Topic, change: watching.Change) -> None:
        if change.version is None:
            topic.gone = True
            topic.tell()
            return
        for occurrence in change.occurrences:
            encoded = encode(occurrence)
            topic.kept.append((occurrence, encoded))
            topic.kept_bytes += len(encoded)
        last = change.occurrences[-1].id if change.occurrences else topic.known.last
        # A full page may not be all: the version stays as it was, so that the next look goes on.
        is_all = len(change.occurrences) < watching.PAGE
        topic.known = watching.Known(change.version if is_all else topic.known.version, last)
        while topic.kept_bytes > self._limits.kept_bytes:
            dropped, encoded = topic.kept.popleft()
            topic.floor = dropped.id
            topic.kept_bytes -= len(encoded)
        if change.occurrences:
            topic.tell()


class Stream:
    """One watcher's view of one experiment."""

    def __init__(self, streams: Streams, caller: str, experiment_id: str, topic: Topic, after: int) -> None:
        """Made by `Streams.open`."""
        self.caller = caller
        self.experiment_id = experiment_id
        self.topic = topic
        self._streams = streams
        self._after = after
        self._released = False

    def release(self) -> None:
        """Gives its place to another; safe to call twice."""
        if not self._released:
            self._released = True
            self._streams._release(self)

    async def chunks(self) -> AsyncIterator[bytes]:
        """What the watcher gets, until the experiment's last occurrence, or until the stream must end."""
        limits, clock_s = self._streams._limits, self._streams._clock_s
        end_s = clock_s() + limits.lifetime_s
        yield OPENING
        while not self._streams._closing and clock_s() < end_s:
            changed = self.topic.changed
            found = await self._next()
            if found:
                self._after = found[-1][0].id
                yield b"".join(encoded for _, encoded in found)
                if found[-1][0].is_last:
                    return
                continue
            if self.topic.gone:
                yield DELETED
                return
            try:
                async with asyncio.timeout(min(limits.heartbeat_s, max(0.0, end_s - clock_s()))):
                    await changed.wait()
            except TimeoutError:
                yield HEARTBEAT

    async def _next(self) -> list[tuple[Occurrence, bytes]]:
        """What follows and is known now, at most a page, and nothing behind the last."""
        topic = self.topic
        if self._after < topic.floor:
            floor = topic.floor
            page = await to_thread.run_sync(
                watching.occurrences, self._streams._database, self.experiment_id, self._after
            )
            if page:
                return _up_to_the_last([(occurrence, encode(occurrence)) for occurrence in page])
            # They are being deleted: nothing of the past is left to tell.
            self._after = floor
        return _up_to_the_last([each for each in topic.kept if each[0].id > self._after])


def encode(occurrence: Occurrence) -> bytes:
    """An occurrence as it goes over the wire."""
    return format_sse_event(
        id=str(occurrence.id), event=occurrence.kind, data_str=occurrence.model_dump_json()
    )


def _up_to_the_last(found: list[tuple[Occurrence, bytes]]) -> list[tuple[Occurrence, bytes]]:
    for position, (occurrence, _) in enumerate(found, start=1):
        if occurrence.is_last:
            return found[:position]
    return found
