"""Head and body of an answer in one piece: each alone costs a call of the system, and wakes the reader."""

import asyncio
from typing import Any

MOST_JOINED_BYTES = 64 * 1024
"""A longer piece is worth a call of its own, and would have to be copied."""


class JoinedWrites(asyncio.Transport):
    """A connection's transport that keeps what is written until more comes, or the event loop has come round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Args: what is written to, its loop."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._kept = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes now or, at the latest, when the loop comes round."""
        kept = self._kept
        if kept:
            self._kept = b""
            if len(data) <= MOST_JOINED_BYTES:
                self._transport.write(kept + data)
            else:
                self._transport.write(kept)
                self._transport.write(data)
        elif len(data) <= MOST_JOINED_BYTES:
            self._kept = bytes(data)
            self._loop.call_soon(self._write_kept)
        else:
            self._transport.write(data)

    def _write_kept(self) -> None:
        kept, self._kept = self._kept, b""
        if kept:
            self._transport.write(kept)

    def close(self) -> None:
        """Closes once everything is written."""
        self._write_kept()
        self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self._kept = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or is about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Takes nothing more from the other side."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Goes on taking."""
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that the other side has not taken."""
        return len(self._kept) + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport knows."""
        return self._transport.get_extra_info(name, default)
