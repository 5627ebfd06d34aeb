"""Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as they arrive."""

import codecs
from dataclasses import dataclass, field

MOST_LINE = 1_000_000
"""Longest unfinished line in characters: whatever sends more is no event stream."""


@dataclass(frozen=True)
class ServerSentEvent:
    """One event."""

    kind: str
    """Its `event` field; `message` without one."""
    data: str
    """Its `data` lines."""
    id: str
    """The last id that came with this event or one before; empty without any."""


@dataclass
class EventParser:
    """Bytes to events, however they are cut into pieces; keeps no more than the event under way."""

    last_id: str = ""
    """What to send as `Last-Event-ID` to go on from here."""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _rest: str = ""
    _kind: str = ""
    _id: str | None = None
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that a piece completes.

        Args:
            piece: What arrived.

        Raises:
            ValueError: A line has no end.
        """
        text = self._rest + self._decoder.decode(piece)
        # A CR at the end may be half of a CRLF.
        held = "\r" if text.endswith("\r") else ""
        lines = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + held
        if len(self._rest) > MOST_LINE:
            raise ValueError(f"a line of the event stream is longer than {MOST_LINE:,} characters")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: str) -> ServerSentEvent | None:
        if line == "":
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _complete(self) -> ServerSentEvent | None:
        self.last_id = self.last_id if self._id is None else self._id
        event = ServerSentEvent(self._kind or "message", "\n".join(self._data), self.last_id)
        is_one = bool(self._data)
        self._kind, self._id, self._data = "", None, []
        return event if is_one else None
