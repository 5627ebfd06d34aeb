"""The fused ghost exchange over NVLink: one kernel stores to every peer, signals, waits and collects.

For small messages an NCCL collective costs some 17 microseconds whatever it carries; a store to a peer's memory and a
flag cost a few. So small sums over all ranks travel so, too: the outputs of every layout, and whatever is as small.
Memory comes from PyTorch's symmetric memory; NVLink multicast is not used. Where peers can't
reach each other, or without CUDA or Triton, there is no exchange and `reason` says why; the layout then uses NCCL.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from phantom_core.agreement import holders, named
from phantom_core.layer_costs import MOST_FUSED_BYTES, fits_fused

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BLOCKS = 64
"""Programs of one exchange at most; a conversation each."""
TILE_BYTES = MOST_FUSED_BYTES // MOST_BLOCKS
"""Largest tile that one program sends to one peer; NCCL's bandwidth is better for larger messages than these make."""
SMALLEST_TILE = 512
"""Elements; with 128 threads that is 8 bytes each in bfloat16."""
SHARD_MULTIPLE = 16
"""Numbers of a shard are a multiple of it: each then begins where 16 bytes can be moved at once."""
LARGE_TILE = 4_096
"""Elements from which a program has twice the threads."""
THREAD_WARPS = 4


@dataclass(frozen=True)
class ArenaChoice:
    """Where ghosts can be stored for peers, if anywhere."""

    arena: "GhostArena | None"
    """The memory, or None for NCCL or gloo."""
    reason: str
    """Why."""


@dataclass(frozen=True)
class ExchangeChoice:
    """Which exchange a group uses."""

    exchange: "SymmetricExchange | None"
    """The fused one, or None for NCCL or gloo."""
    reason: str
    """Why."""


def choose_arena(group: dist.ProcessGroup, device: torch.device) -> ArenaChoice:
    """Maps memory of every rank of a group into every other; all must call it, all get one answer.

    PyTorch counts the rendezvous of a process, not of a group: one of only some ranks makes a later one of all wait
    for ever (torch 2.11; pytorch issue 196082). So where groups overlap, every rank of the largest makes an arena for
    each of them, in one order, and the smaller groups' exchanges are given theirs.

    Args:
        group: The ranks.
        device: This rank's device.
    """
    problem = _problem(group, device)
    arena = None
    if problem is None:
        arena, problem = _tried(lambda: GhostArena(group, device))
    # Asked before they meet: ranks in a rendezvous would wait for one that does not come.
    reason = _told(problem, group, device)
    if reason is None and arena is not None:
        _, problem = _tried(arena.meet)
        reason = _told(problem, group, device)
    if reason is not None:
        log.info("ghosts travel by %s: %s", dist.get_backend(group), reason)
        return ArenaChoice(None, reason)
    return ArenaChoice(arena, "every rank reaches every other's memory")


def choose_exchange(
    group: dist.ProcessGroup | None, device: torch.device, arena: ArenaChoice | None = None
) -> ExchangeChoice:
    """Sets up the fused exchange if every rank of the group can use it; all must call it, all get one answer.

    Args:
        group: The ranks; None for one rank alone.
        device: This rank's device.
        arena: Made for this group alone by a group whose first ranks it is; None makes one.
    """
    if group is None or dist.get_world_size(group) == 1:
        return ExchangeChoice(None, "one rank exchanges nothing")
    chosen = choose_arena(group, device) if arena is None else arena
    if chosen.arena is None:
        return ExchangeChoice(None, chosen.reason)
    return ExchangeChoice(SymmetricExchange(group, device, chosen.arena), chosen.reason)


class GhostArena:
    """Memory and signal pads of every rank of a group, mapped into every other once they have met."""

    handle: Any
    """Where the others' memory is mapped."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Allocates this rank's.

        Raises:
            RuntimeError: There is no such memory.
            ImportError: Triton is missing.
        """
        import torch.distributed._symmetric_memory as symmetric

        from phantom_core import ghost_kernels

        self.kernels = ghost_kernels
        self.ranks = dist.get_process_group_ranks(group)
        self._group = group
        size = 2 * MOST_BLOCKS * len(self.ranks) * TILE_BYTES
        self._memory = symmetric.empty(size, dtype=torch.uint8, device=device)

    def meet(self) -> None:
        """Maps the others'; every rank of the group must.

        Raises:
            RuntimeError: Peers' memory can't be mapped.
        """
        import torch.distributed._symmetric_memory as symmetric

        self.handle = symmetric.rendezvous(self._memory, group=self._group)
        world_size = len(self.ranks)
        if self.handle is None or self.handle.signal_pad_size < 4 * MOST_BLOCKS * world_size:
            raise RuntimeError(f"the signal pad is too small for {world_size} ranks")


class SymmetricExchange:
    """All-gather and reduce-scatter of ghosts, and sums, in one kernel each, capturable in a CUDA graph.

    Calls of all ranks must come in the same order, as with any collective; one object serves all layers of a model.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, arena: GhostArena) -> None:
        """Begins a conversation; every rank of the group must.

        Args:
            group: The ranks that exchange; the first of the arena's.
            device: This rank's device.
            arena: For this exchange alone; an earlier one on it has ended.
        """
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        assert dist.get_process_group_ranks(group) == arena.ranks[: self.world_size], "peers go by their rank"
        self._arena, self._kernels, self._handle = arena, arena.kernels, arena.handle
        # First in line: peers wait for a message, while a GEMM beside it can wait for a free multiprocessor.
        self._side = torch.cuda.Stream(device, priority=-2)  # type: ignore[no-untyped-call]
        self._epochs = torch.zeros(MOST_BLOCKS, dtype=torch.int32, device=device)
        _meet(group, device)  # a peer's last signals of an earlier conversation have come
        self._handle.get_signal_pad(self.rank).zero_()
        _meet(group, device)

    def carries(self, size_bytes: int) -> bool:
        """Whether one rank's ghosts of that many bytes fit."""
        return fits_fused(self.world_size * size_bytes, self.world_size)

    def carries_sum(self, size_bytes: int) -> bool:
        """Whether a tensor of that many bytes can be summed."""
        return fits_fused(size_bytes, self.world_size)

    def sum_bytes_sent(self, size_bytes: int) -> int:
        """Bytes that one rank sends for a sum of a tensor of that many."""
        if self._at_once(size_bytes):
            return (self.world_size - 1) * size_bytes
        return 2 * (self.world_size - 1) * -(-size_bytes // self.world_size)

    def _at_once(self, size_bytes: int) -> bool:
        """Whether telling all numbers to all ranks takes no longer than summing a shard each and telling the result.

        The latter sends 2 (p-1) / p of the tensor instead of p - 1 times it, and waits twice.
        """
        return size_bytes * max(1, self.world_size - 2) <= MOST_FUSED_BYTES

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Makes what is enqueued inside run beside the current stream, after what it holds so far, until `join`."""
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            yield

    def join(self) -> None:
        """Makes the current stream wait for what was enqueued beside it."""
        torch.cuda.current_stream(self._side.device).wait_stream(self._side)

    def gather(self, own: torch.Tensor, gathered: torch.Tensor) -> None:
        """Every rank's own (k, b) into the others' gathered ((p-1) k, b), in block order, on the current stream.

        Own may be (parts, k, b) in a wider format: parts are added up on the way.
        """
        numel = gathered.numel() // (self.world_size - 1)
        self._launch(self._kernels.gather_ghosts, own, gathered, numel, numel, parts=_parts(own))

    def reduce(self, contributions: torch.Tensor, own: torch.Tensor) -> None:
        """Sums over ranks the blocks of contributions ((p-1) k, b) that are meant for this one into own (k, b).

        Contributions may be (parts, (p-1) k, b) in a wider format: parts are added up on the way.
        """
        in_double, parts = own.dtype == torch.float64, _parts(contributions)
        kernel, numel = self._kernels.reduce_ghosts, own.numel()
        self._launch(kernel, contributions, own, numel, numel, parts=parts, sum_in_double=in_double)

    def sum(self, given: torch.Tensor) -> None:
        """Sums a contiguous tensor over the ranks, in place and in rank order: all ranks get the same to the bit."""
        in_double, numel = given.dtype == torch.float64, given.numel()
        at_once = self._at_once(numel * given.element_size())
        kernel = self._kernels.sum_everywhere if at_once else self._kernels.sum_by_shards
        own = numel if at_once else _shard(numel, self.world_size)
        self._launch(kernel, given, given, numel, own, sum_in_double=in_double)

    def _launch(
        self, kernel: Any, given: torch.Tensor, taken: torch.Tensor, numel: int, own: int, **options: int
    ) -> None:
        """Starts a kernel on the current stream; `own` numbers go from one rank to one other at a time."""
        tile = _tile(own)
        kernel[(_blocks(own, tile),)](
            given,
            taken,
            self._handle.buffer_ptrs_dev,
            self._handle.signal_pad_ptrs_dev,
            self._epochs,
            numel,
            rank=self.rank,
            world=self.world_size,
            tile=tile,
            most=MOST_BLOCKS,
            tile_bytes=TILE_BYTES,
            num_warps=THREAD_WARPS if tile < LARGE_TILE else 2 * THREAD_WARPS,
            **options,
        )


def _meet(group: dist.ProcessGroup, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    dist.barrier(group, device_ids=[device.index])


def _parts(product: torch.Tensor) -> int:
    return product.shape[0] if product.dim() == 3 else 1


def _tile(own: int) -> int:
    """Elements per program: a power of two, so that no more programs run than there are conversations."""
    tile = SMALLEST_TILE
    while _blocks(own, tile) > MOST_BLOCKS:
        tile *= 2
    return tile


def _shard(numel: int, world_size: int) -> int:
    """Numbers of a sum that one rank adds up; the last ones may have fewer. As `ghost_kernels.sum_by_shards` has it."""
    return -(-numel // (world_size * SHARD_MULTIPLE)) * SHARD_MULTIPLE


def _blocks(own: int, tile: int) -> int:
    return -(-own // tile)


def _problem(group: dist.ProcessGroup, device: torch.device) -> str | None:
    """What keeps this rank from the fused exchange, as far as it can see alone."""
    if device.type != "cuda":
        return f"the fused exchange needs CUDA, this rank computes on {device.type}"
    if dist.get_backend(group) != "nccl":
        return f"the group's backend is {dist.get_backend(group)}, not nccl"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "the fused exchange needs compute capability 8.0 or newer"
    return None


def _tried(set_up: Callable[[], T]) -> tuple[T | None, str | None]:
    """What a part of the set-up gives, or why it fails."""
    try:
        return set_up(), None
    except (RuntimeError, ImportError, AttributeError, TypeError) as error:
        return None, f"symmetric memory can't be set up: {(str(error).splitlines() or [''])[0][:200]}"


def _told(problem: str | None, group: dist.ProcessGroup, device: torch.device) -> str | None:
    """Every rank's problem, in the same words on all of them; None if no rank has any."""
    problems: list[str | None] = [None] * dist.get_world_size(group)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        dist.all_gather_object(problems, problem, group=group)
    if len({*problems}) == 1:
        return problem
    return "; ".join(f"{named(ranks)}: {each}" for each, ranks in holders(problems).items())
