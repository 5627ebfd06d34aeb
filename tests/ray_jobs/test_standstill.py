"""When ranks that live count as stuck, by a clock that the test moves."""

from collections.abc import Sequence

from ray_jobs import patience
from ray_jobs.headway import Headway, Standing
from ray_jobs.standstill import MOST_TOLD, Standstill

LIMIT_S, GAP_S = 300.0, 60.0


class Bench:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.watch = Standstill(LIMIT_S, GAP_S, lambda: self.now_s)

    def seconds_until_told(self, ranks: Sequence[Standing], most_s: float = 1e5) -> float | None:
        """Looks every 20 s at ranks that stand still; None if nothing is told for `most_s`."""
        began_s = self.now_s
        while self.now_s - began_s < most_s:
            if self.watch.look(ranks) is not None:
                return self.now_s - began_s
            self.now_s += 20
        return None


def at(where: str, moves: tuple[int, int] = (1, 0), may_take_s: float = 0.0) -> Standing:
    return Standing(moves, where, may_take_s)


def test_the_limit_holds_where_no_rank_knows_better() -> None:
    assert Bench().seconds_until_told([at("a barrier"), at("a disk")]) == LIMIT_S + 20


def test_one_rank_that_says_its_work_may_take_longer_is_waited_for() -> None:
    assert Bench().seconds_until_told([at("a barrier"), at("a window", may_take_s=5_000)]) == 5_020


def test_any_move_of_any_rank_counts_from_then_on() -> None:
    bench = Bench()
    for number in range(100):
        assert bench.watch.look([at("a barrier"), at("steps", (1, number))]) is None
        bench.now_s += LIMIT_S - 1
    assert bench.seconds_until_told([at("a barrier"), at("steps", (1, 99))], LIMIT_S + 100) is not None


def test_time_in_which_nobody_could_look_is_no_standing_still() -> None:
    """A host that slept for an hour wakes its ranks in any order."""
    bench = Bench()
    ranks = [at("a barrier"), at("steps")]
    assert bench.watch.look(ranks) is None
    bench.now_s += 3_600
    assert bench.watch.look(ranks) is None
    assert bench.watch.still_s == GAP_S


def test_of_many_ranks_the_few_that_are_elsewhere_are_named_first() -> None:
    bench = Bench()
    ranks = [at("the barrier after training window 3", (9, 40))] * 64
    ranks[17] = at("training window 3", (8, 39))
    bench.seconds_until_told(ranks)
    told = bench.watch.look(ranks)
    assert told is not None
    assert told.index("rank 17 in training window 3, 39 pieces of work") < told.index("ranks 0, 1, 2,")
    everywhere = [at(f"place {number}") for number in range(100)]
    bench.seconds_until_told(everywhere)
    told = bench.watch.look(everywhere)
    assert told is not None
    assert f"others in {100 - MOST_TOLD} more places" in told


def test_what_a_rank_says_of_itself_comes_through_its_beat() -> None:
    headway = Headway()
    headway.about("phantom, round 1")
    headway.enter("setup window 0", 1_800)
    headway.watch(lambda: 7)
    assert Standing.parsed(headway.told()) == Standing((1, 7), "phantom, round 1: setup window 0", 1_800)
    headway.about("")
    headway.watch(None)
    headway.enter("the end")
    assert Standing.parsed(headway.told()) == Standing((2, 0), "the end", 0.0)


def test_patience_follows_from_what_is_known() -> None:
    assert patience.for_steps(100, None, "graph") == patience.for_rows(100, 10, None) == patience.UNKNOWN_S
    assert patience.for_steps(100, 0.5, "graph") == patience.TIMES * 50
    for mode, most in patience.MOST_IN_FLIGHT.items():
        in_flight = patience.for_steps(most, 0.5, mode)
        assert patience.for_steps(10**9, 0.5, mode) == in_flight, (
            "more are not outstanding once nothing moves"
        )
    assert patience.for_rows(1_000, 10, 0.5) == patience.TIMES * 50
    assert patience.for_bytes(10**9) == patience.TIMES * 10
