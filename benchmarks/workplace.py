"""One rank's place in a benchmark that torchrun started: its device, its meter, the teams of 1, 2, ... p ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch.distributed.rendezvous import rendezvous

from phantom_core.meters.base import Meter
from phantom_core.meters.choose import MeterRequest, open_meter
from ray_jobs.ranks import Ranks, Team, use_interface_of

LONGEST_WAIT_S = 1_800.0
"""Longest that ranks outside a team wait for it, on the CPU."""


@dataclass(frozen=True)
class Workplace:
    """What a rank works with."""

    rank: int
    """This rank."""
    world_size: int
    """All ranks."""
    device: torch.device
    """Its own."""
    ranks: Ranks
    """Everyone, and teams of ranks 0 ... p - 1."""
    meter: Meter
    """Reads this rank's device."""

    @property
    def on_gpu(self) -> bool:
        """Whether ranks compute on GPUs, over NCCL."""
        return self.device.type == "cuda"

    @property
    def sizes(self) -> list[int]:
        """Team sizes: powers of two up to all ranks."""
        return team_sizes(self.world_size)

    def team(self, size: int) -> Team | None:
        """The team of that size; None if this rank is not in it."""
        return self.ranks.team(size) if self.rank < size else None

    def say(self, text: str) -> None:
        """Prints a line of progress, once."""
        if self.rank == 0:
            print(text, flush=True)

    def synchronize(self) -> None:
        """Waits for this rank's device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def meet(self) -> None:
        """Waits for everyone, on the CPU."""
        self.synchronize()
        self.ranks.everyone.agree(True)


def team_sizes(world_size: int) -> list[int]:
    """Powers of two up to a number of ranks, and that number."""
    return sorted({1 << exponent for exponent in range(world_size.bit_length())} | {world_size})


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Joins the ranks that torchrun started: NCCL where each has a GPU, gloo on CPUs otherwise."""
    store, rank, world_size = next(rendezvous("env://", timeout=timedelta(seconds=LONGEST_WAIT_S)))
    local = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    host = os.environ["MASTER_ADDR"]
    use_interface_of("127.0.0.1" if host in ("localhost", "127.0.0.1") else host)
    request = MeterRequest("cpu", rank=rank, cpu_method="estimate")
    if gpus:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        request = MeterRequest("cuda", uuid=uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    else:
        torch.set_num_threads(1)
    with (
        Ranks(
            rank=rank,
            world_size=world_size,
            store=store,
            device=device,
            sizes=team_sizes(world_size),
            longest_wait_s=LONGEST_WAIT_S,
        ) as ranks,
        open_meter(request) as meter,
    ):
        yield Workplace(rank, world_size, device, ranks, meter)
