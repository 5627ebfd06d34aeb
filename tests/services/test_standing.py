"""How long something has stood still, by a clock that nobody sets."""

from services.standing import Standing


class Clock:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_each_value_counts_from_when_it_was_first_seen() -> None:
    clock = Clock()
    standing = Standing(clock)
    assert standing.look({"a": 1, "b": 1}) == {"a": 0, "b": 0}
    clock.s = 5
    assert standing.look({"a": 1, "b": 2}) == {"a": 5, "b": 0}
    clock.s = 7
    assert standing.look({"a": 1, "b": 2, "c": None}) == {"a": 7, "b": 2, "c": 0}


def test_a_name_that_was_missing_begins_anew() -> None:
    clock = Clock()
    standing = Standing(clock)
    standing.look({"a": 1})
    clock.s = 5
    assert standing.look({}) == {}
    assert standing.look({"a": 1}) == {"a": 0}


def test_after_too_long_a_gap_all_counts_anew() -> None:
    clock = Clock()
    standing = Standing(clock, longest_gap_s=10)
    standing.look({"a": 1})
    clock.s = 10
    assert standing.look({"a": 1}) == {"a": 10}
    clock.s = 21
    assert standing.look({"a": 1}) == {"a": 0}
