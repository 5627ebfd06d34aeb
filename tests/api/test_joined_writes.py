"""What is written in two pieces leaves in one; nothing is lost, late, or out of order for it."""

import asyncio

from api.joined_writes import MOST_JOINED_BYTES, JoinedWrites


class Written(asyncio.Transport):
    """Keeps what would go out."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.ended: str | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.ended is None
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def get_write_buffer_size(self) -> int:
        return 0


def test_a_head_and_its_body_are_one_piece_and_a_head_alone_goes_when_the_loop_comes_round() -> None:
    async def write() -> list[bytes]:
        written = Written()
        joined = JoinedWrites(written, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        assert written.pieces == [b"head body"]
        joined.write(b"alone")
        assert joined.get_write_buffer_size() == 5
        await asyncio.sleep(0)
        joined.write(bytearray(b"next"))
        await asyncio.sleep(0)
        return written.pieces

    assert asyncio.run(write()) == [b"head body", b"alone", b"next"]


def test_a_long_piece_is_not_copied_and_keeps_its_place() -> None:
    long = b"x" * (MOST_JOINED_BYTES + 1)

    async def write() -> list[bytes]:
        written = Written()
        joined = JoinedWrites(written, asyncio.get_running_loop())
        for piece in (b"head", long, long, b"end"):
            joined.write(piece)
        await asyncio.sleep(0)
        return written.pieces

    assert asyncio.run(write()) == [b"head", long, long, b"end"]


def test_closing_writes_what_is_kept_and_aborting_forgets_it() -> None:
    async def end() -> tuple[Written, Written]:
        closed, aborted = Written(), Written()
        for written in (closed, aborted):
            joined = JoinedWrites(written, asyncio.get_running_loop())
            joined.write(b"last words")
            joined.close() if written is closed else joined.abort()
            await asyncio.sleep(0)
        return closed, aborted

    closed, aborted = asyncio.run(end())
    assert (closed.pieces, closed.ended) == ([b"last words"], "closed")
    assert (aborted.pieces, aborted.ended) == ([], "aborted")
