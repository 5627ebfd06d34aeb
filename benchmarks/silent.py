"""A communicator that sends nothing: each collective is a local copy of what it would write on this rank.

An arm that is built on it does the same GEMMs and passes on numbers of the same size, so what it is faster by is the
time that communication was exposed, contention included. It learns nothing sound.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.ghost_exchange import SymmetricExchange
from phantom_core.layer_costs import Collective


class SilentCommunicator(Communicator):
    """The ranks of a group, who don't speak to each other in steps; building and agreeing they do."""

    def all_gather(self, gathered: torch.Tensor, shard: torch.Tensor) -> dist.Work:
        """Every slot of `gathered` gets this rank's shard."""
        slots = gathered.view(self.world_size, *shard.shape)
        own = slots[self.rank]
        if own.data_ptr() != shard.data_ptr():
            slots.copy_(shard.expand_as(slots))
        else:
            slots[: self.rank].copy_(own.expand_as(slots[: self.rank]))
            slots[self.rank + 1 :].copy_(own.expand_as(slots[self.rank + 1 :]))
        return _done()

    def reduce_scatter(self, own: torch.Tensor, contributions: torch.Tensor) -> dist.Work:
        """`own` gets this rank's contribution to itself; of ghosts, which have none, a neighbour's."""
        slots = contributions.view(self.world_size, *own.shape)
        own.copy_(slots[(self.rank + 1) % self.world_size])
        return _done()

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work:  # noqa: ARG002
        """The tensor stays as it is."""
        return _done()

    def count(self, kind: Collective, numel: int, element_bytes: int, *, fused: bool = False) -> None:
        """Nothing is sent, so nothing counts."""

    def fuse_ghosts(self, device: torch.device) -> str:
        """Ghosts are copied."""
        self._copies = _SilentExchange(device)
        return "silent: nothing is sent"

    @property
    def ghost_exchange(self) -> SymmetricExchange:
        """Copies ghosts."""
        return cast(SymmetricExchange, self._copies)


class _SilentExchange:
    """As `SymmetricExchange` is used."""

    def __init__(self, device: torch.device) -> None:
        # A stream as the exchange has one: what is made beside stays so.
        self._side = torch.cuda.Stream(device, priority=-2) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def carries(self, size_bytes: int) -> bool:  # noqa: ARG002
        return True

    @contextmanager
    def beside(self) -> Iterator[None]:
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            yield

    def join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)

    def gather(self, own: torch.Tensor, gathered: torch.Tensor) -> None:
        first = own[0] if own.dim() == 3 else own  # of several parts
        blocks = gathered.view(-1, *first.shape)
        blocks.copy_(first.expand_as(blocks))

    def reduce(self, contributions: torch.Tensor, own: torch.Tensor) -> None:
        first = contributions[0] if contributions.dim() == 3 else contributions
        own.copy_(first[: own.shape[0]])


class _Done:
    """A collective that was done when it was started."""

    def wait(self) -> bool:
        return True


def _done() -> dist.Work:
    return cast(dist.Work, cast(Any, _Done()))
