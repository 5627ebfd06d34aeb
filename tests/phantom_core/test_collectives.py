"""The few collectives do what they say, count what they send, and tell ranks apart that disagree."""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator, PeerGoneError, RanksDisagreeError, Traffic
from phantom_core.ghost_exchange import ExchangeChoice, SymmetricExchange
from tests.distributed import run_ranks


def exchange() -> None:
    ranks = Communicator()
    p, j = ranks.world_size, ranks.rank
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        gathered = torch.empty(2 * p, 3, dtype=dtype)
        own = gathered[2 * j : 2 * j + 2].fill_(j)
        ranks.all_gather(gathered, own).wait()
        assert gathered[:, 0].tolist() == [float(rank) for rank in range(p) for _ in range(2)]

        scattered = torch.empty(1, 3, dtype=dtype)
        ranks.reduce_scatter(scattered, torch.arange(p, dtype=dtype)[:, None].repeat(1, 3)).wait()
        assert torch.equal(scattered, torch.full((1, 3), float(p * j), dtype=dtype))

        summed = torch.full((4,), float(j), dtype=dtype)
        ranks.all_reduce(summed).wait()
        assert torch.equal(summed, torch.full((4,), float(sum(range(p))), dtype=dtype))
    assert [int(part) for part in ranks.from_all_ranks(torch.tensor(j))] == list(range(p))
    empty = ranks.from_all_ranks(torch.empty(0, 3))
    assert [part.shape for part in empty] == [(0, 3)] * p


def count() -> None:
    ranks = Communicator()
    p = ranks.world_size
    with ranks.counting() as outer:
        ranks.all_reduce(torch.zeros(10)).wait()
        with ranks.counting() as inner:
            ranks.all_gather(torch.zeros(2 * p), torch.zeros(2)).wait()
            ranks.from_all_ranks(torch.zeros(5))
        ranks.reduce_scatter(torch.zeros(1, dtype=torch.float64), torch.zeros(p, dtype=torch.float64)).wait()
    ranks.all_reduce(torch.zeros(10)).wait()
    assert outer.calls == {"all_reduce": 1, "reduce_scatter": 1}
    # Ring: 2 (p-1)/p of the tensor to all-reduce, (p-1)/p to scatter, with p = 3, rounded up to whole
    # numbers.
    assert outer.bytes_sent == {"all_reduce": 14 * 4, "reduce_scatter": 2 * 8}
    assert inner == Traffic(calls={"all_gather": 1}, bytes_sent={"all_gather": 4 * 4})
    assert outer.total_bytes_sent == 14 * 4 + 2 * 8


def agree() -> None:
    ranks = Communicator()
    ranks.agree("the same thing everywhere", None, size=1)
    with pytest.raises(
        RanksDisagreeError, match="on thing 0 on rank 0, thing 1 on rank 1, thing 2 on rank 2; give"
    ):
        ranks.agree(f"thing {ranks.rank}")
    with pytest.raises(RanksDisagreeError) as caught:
        ranks.agree("a thing", None, size=1, colour="odd" if ranks.rank == 1 else "even")
    assert str(caught.value) == (
        "ranks disagree on a thing: colour = even on ranks 0, 2, odd on rank 1; give every rank of a group the same "
        f"(this is rank {ranks.rank} of 3)"
    )
    with pytest.raises(RanksDisagreeError, match="size = nothing on rank 0, 1 on ranks 1, 2"):
        ranks.agree("a thing", **({"size": 1} if ranks.rank else {}))
    with ranks.agreed(), ranks.agreed():
        ranks.agree(f"thing {ranks.rank}")


class InRankOrder:
    """What the fused exchange is to a communicator, without its memory."""

    def __init__(self, world_size: int, most_bytes: int) -> None:
        self.world_size, self._most_bytes = world_size, most_bytes
        self.joined = 0

    def carries_sum(self, size_bytes: int) -> bool:
        return size_bytes <= self._most_bytes

    def sum_bytes_sent(self, size_bytes: int) -> int:
        return 100 * size_bytes

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        self.joined += 1

    def sum(self, given: torch.Tensor) -> None:
        dist.all_reduce(given)


def fused_sums() -> None:
    ranks = Communicator()
    p, fused = ranks.world_size, InRankOrder(ranks.world_size, most_bytes=64)
    ranks._ghost_choice = ExchangeChoice(cast(SymmetricExchange, fused), "as if")
    whole = torch.ones(4, 6)
    for given, carried in (
        (torch.ones(16), True),
        (torch.ones(17), False),
        (torch.ones(8, dtype=torch.float64), True),
        (torch.ones(9, dtype=torch.float64), False),
        (torch.ones(4, dtype=torch.int64), False),  # it adds up floats
        (whole[1:3], True),  # rows of a tensor are in one piece, columns are not
        (torch.ones(1, dtype=torch.bfloat16), True),
    ):
        before = fused.joined
        with ranks.counting() as traffic:
            pending = ranks.all_reduce(given)
            assert fused.joined == before, "nobody waits before it is asked to"
            pending.wait()
        assert (given == p).all()
        assert traffic.calls == {"all_reduce": 1}
        assert traffic.fused_calls == ({"all_reduce": 1} if carried else {})
        assert fused.joined == before + carried
        size_bytes = given.numel() * given.element_size()
        assert (traffic.total_bytes_sent == 100 * size_bytes) == carried
    assert whole[0, 0] == 1
    # Who gave up starts no exchange that nobody would end.
    ranks._gone = "rank 1 failed"
    with pytest.raises(PeerGoneError):
        ranks.all_reduce(torch.ones(1))


@pytest.mark.parametrize("function", [exchange, count, agree, fused_sums])
def test_collectives_on_three_ranks(function: object) -> None:
    run_ranks(3, function)  # type: ignore[arg-type]


def test_one_rank_needs_no_process_group() -> None:
    assert not dist.is_initialized()
    alone = Communicator()
    value = torch.ones(2, requires_grad=True)
    (copied,) = alone.from_all_ranks(value)
    assert not copied.requires_grad
    assert copied.data_ptr() != value.data_ptr()
