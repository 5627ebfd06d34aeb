"""The few collectives do what they say, count what they send, and tell ranks apart that disagree."""

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator, RanksDisagreeError, Traffic
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
    ranks.agree("the same thing everywhere")
    with pytest.raises(RanksDisagreeError, match=r"builds thing \d, but ranks \[.*\] build something else"):
        ranks.agree(f"thing {ranks.rank}")
    with pytest.raises(RanksDisagreeError) as caught:
        ranks.agree("odd" if ranks.rank == 1 else "even")
    others = "[0, 2]" if ranks.rank == 1 else "[1]"
    assert f"ranks {others} build" in str(caught.value)


@pytest.mark.parametrize("function", [exchange, count, agree])
def test_collectives_on_three_ranks(function: object) -> None:
    run_ranks(3, function)  # type: ignore[arg-type]


def test_one_rank_needs_no_process_group() -> None:
    assert not dist.is_initialized()
    alone = Communicator()
    value = torch.ones(2, requires_grad=True)
    (copied,) = alone.from_all_ranks(value)
    assert not copied.requires_grad
    assert copied.data_ptr() != value.data_ptr()
