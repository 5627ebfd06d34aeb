"""Server-sent events as the standard says, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.event_stream import EventParser, ServerSentEvent

STREAM = (
    "retry: 1000\n\n: a comment\n\nid: 1\nevent: state\ndata: {}\n\n"
    "data:first\r\ndata: second\r\nid: 2\r\n\r\nid: 3\n\ndata: ünïcode\r\r:end\n\nevent: lost\ndata: no end"
).encode()
EVENTS = [
    ServerSentEvent("state", "{}", "1"),
    ServerSentEvent("message", "first\nsecond", "2"),
    ServerSentEvent("message", "ünïcode", "3"),
]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12).map(sorted))
def test_pieces_of_any_size_give_the_same_events(cuts: list[int]) -> None:
    parser = EventParser()
    found: list[ServerSentEvent] = []
    for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        found += parser.feed(STREAM[begin:end])
    assert found == EVENTS
    assert parser.last_id == "3"


def test_an_id_counts_once_its_event_is_whole() -> None:
    parser = EventParser(last_id="7")
    assert parser.feed(b"id: 8\ndata: x\n") == []
    assert parser.last_id == "7"
    assert parser.feed(b"\n") == [ServerSentEvent("message", "x", "8")]
    assert parser.last_id == "8"


def test_a_line_without_an_end_is_given_up() -> None:
    with pytest.raises(ValueError, match="longer than"):
        EventParser().feed(b"x" * 2_000_000)
    parser = EventParser()
    assert parser.feed(b"data: " + b"x" * 900_000) == []
    with pytest.raises(ValueError, match="longer than"):
        parser.feed(b"x" * 200_000)
