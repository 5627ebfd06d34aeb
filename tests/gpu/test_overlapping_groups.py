"""The fused ghost exchange of a group and of its first ranks alone, one after the other."""

import pytest
import torch
import torch.distributed as dist

from phantom_core.ghost_exchange import ExchangeChoice, choose_arena, choose_exchange
from tests.distributed import run_ranks
from tests.gpu.running import BOARDS, MOST_RANKS, own_board

pytestmark = pytest.mark.skipif(
    MOST_RANKS < 3, reason=f"a group of two in one of three needs 3 GPUs, there are {BOARDS}"
)


def gathered(choice: ExchangeChoice, device: torch.device) -> list[float]:
    """What a rank gets from its peers, each of which sends its number."""
    assert choice.exchange is not None, choice.reason
    own = torch.full((16, 64), float(dist.get_rank()), device=device)
    others = torch.empty(16 * (choice.exchange.world_size - 1), 64, device=device)
    for _ in range(3):
        choice.exchange.gather(own, others)
    torch.cuda.synchronize(device)
    return [float(block.unique().item()) for block in others.reshape(-1, 16 * 64)]


def exchange_in_turn() -> list[list[float]]:
    rank = dist.get_rank()
    device = own_board()
    everyone = dist.new_group(backend="nccl")
    few = dist.new_group([0, 1], backend="nccl")
    arenas = [choose_arena(everyone, device) for _ in range(2)]
    found = []
    for _ in range(2):
        if rank < 2:
            found.append(gathered(choose_exchange(few, device, arenas[0]), device))
        dist.barrier()
        found.append(gathered(choose_exchange(everyone, device, arenas[1]), device))
        dist.barrier()
    return found


def test_a_group_and_a_part_of_it_exchange_in_turn() -> None:
    first, second, third = run_ranks(3, exchange_in_turn)
    assert first == [[1.0], [1.0, 2.0]] * 2
    assert second == [[0.0], [0.0, 2.0]] * 2
    assert third == [[0.0, 1.0]] * 2
