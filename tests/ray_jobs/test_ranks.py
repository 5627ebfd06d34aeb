"""Which teams get memory that peers can store ghosts in, and how often."""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import ray_jobs.ranks as ranks_module
from phantom_core.ghost_exchange import ArenaChoice
from ray_jobs.ranks import Arenas, Ranks, meet
from tests.distributed import MEETING, from_first, run_ranks


def arenas_of_two_experiments() -> tuple[list[tuple[int, int]], list[str | None]]:
    """One worker group of three ranks; experiments with phantom arms on two ranks, on two and three, and on none."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stores = [meet(rank, "127.0.0.1", from_first, MEETING) for _ in range(3)]
    dist.destroy_process_group()
    made: list[tuple[int, int]] = []

    def choose(group: dist.ProcessGroup, _: torch.device) -> ArenaChoice:
        made.append((len(made), dist.get_world_size(group)))
        return ArenaChoice(None, f"arena {len(made)}")

    reasons: list[str | None] = []
    device = torch.device("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "choose_arena", choose)
        arenas = Arenas(device)
        for store, sizes in zip(stores, ([1, 2], [3, 2], [1]), strict=True):
            with Ranks(
                rank=rank,
                world_size=world_size,
                store=store,
                device=device,
                sizes=sizes,
                longest_wait_s=60,
                arenas=arenas,
            ) as ranks:
                for size in (2, 3):
                    team = ranks.team(size)
                    if team is not None:
                        team.compute.fuse_ghosts(device)
                        choice = team.compute.ghost_choice
                        reasons.append(None if choice is None else choice.reason)
                # The first one's store goes with it, and others may still be joining.
                ranks.everyone.agree(True)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return made, reasons


def test_arenas_are_made_of_all_ranks_once_for_a_worker_group_and_only_for_arms_sizes() -> None:
    told = run_ranks(3, arenas_of_two_experiments)
    none = "no arm was planned to use the fused exchange"
    for made, _ in told:
        assert made == [(0, 3), (1, 3)]
    for _, reasons in told[:2]:
        assert reasons == ["arena 1", none, "arena 1", "arena 2", none]
    assert told[2][1] == [none, "arena 2", none]
