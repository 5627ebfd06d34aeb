"""The few collectives that the layouts use, started asynchronously, each with its byte count.

CollectiveError
|-- PeerGoneError        another rank said that it will not come to the collectives waited for
`-- RanksDisagreeError   ranks of one group were told different things

Bytes are those that one rank sends in the bandwidth-optimal (ring) algorithm, see `layer_costs`; the library
may choose another one. Only small blocks cross in memory order: every collective here gathers or scatters
along the first dimension of contiguous tensors, so the layouts keep what they send feature-major,
(features, b).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

# Its functions keep the default group of the moment of their import as the default of an argument. torch's
# optimizers import it with their first step, and then nobody can leave that group: its threads run until the
# interpreter ends, which a thread that gives a tensor back just then turns into an abort. Before any group it is.
import torch.distributed.nn.functional

from phantom_core.agreement import Told, difference
from phantom_core.functional_collectives import FunctionalCollectives
from phantom_core.ghost_exchange import ArenaChoice, ExchangeChoice, SymmetricExchange, choose_exchange
from phantom_core.layer_costs import Collective, bytes_sent
from phantom_core.side_lane import SideLane
from phantom_core.waiting import Joined, Pending, SlicedWait, abort

# torch 2.13 renamed both functions and warns at the old names; 2.11 has only the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CollectiveError(RuntimeError):
    """Ranks could not do something together."""


class PeerGoneError(CollectiveError):
    """Another rank gave up, so that a collective that this one waits in, or starts, can't end."""


class RanksDisagreeError(CollectiveError):
    """Ranks of one group were told different things; going on would hang or mix up data."""


@dataclass
class Traffic:
    """Collectives that this rank started while they were counted."""

    calls: dict[Collective, int] = field(default_factory=dict)
    """Number of calls by kind."""
    bytes_sent: dict[Collective, int] = field(default_factory=dict)
    """Bytes that this rank sent, by kind."""
    fused_calls: dict[Collective, int] = field(default_factory=dict)
    """Those of the calls that the fused exchange made, by kind."""

    @property
    def total_bytes_sent(self) -> int:
        """Bytes that this rank sent, all kinds together."""
        return sum(self.bytes_sent.values())

    def add(self, kind: Collective, sent: int) -> None:
        """Counts one call."""
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.bytes_sent[kind] = self.bytes_sent.get(kind, 0) + sent


class Communicator:
    """The ranks that split one model: a process group, or one rank alone; counts its traffic if asked.

    A model's layers share one communicator, which is how the traffic of a whole step is counted. A copied
    layer splits over the same ranks.
    """

    makes_ghosts_beside: bool | None = None
    """Whether the thin product that the fused exchange sends is made beside the local one, or before it; None is beside
    a local one that leaves multiprocessors idle, which is where it gains time (docs/decisions/0014)."""
    splits_products = False
    """Whether large forward products whose input or result travels are made in parts, one of which is made while
    another travels (`layouts.tensor_exchange`). Whether that gains anything is up to the device."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, ghost_arena: ArenaChoice | None = None
    ) -> None:
        """Takes a group, or the default group, or one rank alone where torch.distributed is not initialised.

        Args:
            group: The ranks.
            ghost_arena: For the fused ghost exchange, where the group is one of several that overlap (see
                `ghost_exchange.choose_arena`); None makes one when it is wanted.

        Raises:
            CollectiveError: This process is no member of the group.
        """
        self.group: dist.ProcessGroup | None = None
        self.rank = 0
        self.world_size = 1
        self._traffic: Traffic | None = None
        self._gone: str | None = None
        self._lane: SideLane | None = None
        self._agreed = False
        self._ghost_arena = ghost_arena
        self._ghost_choice: ExchangeChoice | None = None
        if group is not None or (dist.is_available() and dist.is_initialized()):
            self.group = group if group is not None else dist.group.WORLD
            self.rank = dist.get_rank(self.group)
            self.world_size = dist.get_world_size(self.group)
            if self.rank < 0:
                raise CollectiveError(
                    f"rank {dist.get_rank()} of {dist.get_world_size()} is no member of the given group; "
                    "build the layer on the group's ranks only"
                )

    @contextmanager
    def weight_gradients_beside(self, device: torch.device) -> Iterator[None]:
        """Lets the layers' backward passes make their weights' gradients on a stream of their own.

        All of them are there at the end, on the current stream. A weight must have no gradient yet that a pass
        would add to. Without CUDA it changes nothing.

        Args:
            device: This rank's device.
        """
        if device.type != "cuda":
            yield
            return
        self._lane = SideLane(device)
        try:
            yield
        finally:
            lane, self._lane = self._lane, None
            lane.join()

    def beside(self, weight: torch.Tensor, *read: torch.Tensor) -> AbstractContextManager[None]:
        """For gradients that only the optimizer waits for: inside `weight_gradients_beside`, on a stream of its own.

        Args:
            weight: The largest whose gradient is made; one that fills the device keeps all in line.
            read: The tensors that are read.
        """
        if self._lane is None or not self._lane.suits(weight):
            return nullcontext()
        return self._lane.beside(*read)

    def make_wait_for_gradients(self, stream: torch.cuda.Stream) -> None:
        """Makes a stream wait for the weights' gradients that were made beside the backward pass so far.

        Args:
            stream: One that is to read them, and has waited for the current one.
        """
        if self._lane is not None:
            self._lane.make_wait(stream)

    def __deepcopy__(self, memo: dict[int, object]) -> "Communicator":
        return self

    @contextmanager
    def counting(self, functional: bool = False) -> Iterator[Traffic]:
        """Counts the collectives started inside; a replayed CUDA graph starts none: count an eager step.

        Args:
            functional: Whether to watch for torch's functional collectives as well, such as DTensor's.
        """
        outer, self._traffic = self._traffic, Traffic()
        try:
            with FunctionalCollectives(self.count) if functional else nullcontext():
                yield self._traffic
        finally:
            self._traffic = outer

    def all_gather(self, gathered: torch.Tensor, shard: torch.Tensor) -> Pending:
        """Starts to put every rank's shard (s, ...) into gathered (p s, ...), in rank order.

        The shard may be this rank's own slot of `gathered`. Call `wait()` on the result before use.
        """
        self.count("all_gather", gathered.numel(), gathered.element_size())
        return self._started(_all_gather(gathered, shard, group=self.group, async_op=True))

    def reduce_scatter(self, own: torch.Tensor, contributions: torch.Tensor) -> Pending:
        """Starts to sum contributions (p s, ...) over the ranks; own (s, ...) gets this rank's slot."""
        self.count("reduce_scatter", contributions.numel(), contributions.element_size())
        return self._started(_reduce_scatter(own, contributions, group=self.group, async_op=True))

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Starts to sum a tensor over the ranks, in place; by the fused exchange where that was set up and carries it.

        The fused exchange sums in rank order, in float32 at least, so that all ranks get the same to the bit.
        """
        exchange, size_bytes = self.ghost_exchange, tensor.numel() * tensor.element_size()
        sums = tensor.is_floating_point() and tensor.is_contiguous()
        if exchange is not None and sums and exchange.carries_sum(size_bytes):
            self._look_up()
            self._add("all_reduce", exchange.sum_bytes_sent(size_bytes), fused=True)
            with exchange.beside():
                exchange.sum(tensor)
            return Joined(exchange.join)
        self.count("all_reduce", tensor.numel(), tensor.element_size())
        return self._started(dist.all_reduce(tensor, group=self.group, async_op=True))

    def from_all_ranks(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor of one shape, in rank order; blocks, and is not counted: not for training."""
        if self.world_size == 1:
            return [tensor.detach().clone()]
        own = tensor.detach().contiguous()
        gathered = own.new_empty(self.world_size * own.numel())
        self._started(_all_gather(gathered, own.view(-1), group=self.group, async_op=True)).wait()
        return [part.view(own.shape) for part in gathered.chunk(self.world_size)]

    def agree(self, what: str, device: torch.device | None = None, /, **settings: object) -> None:
        """Checks that all ranks were told the same, before anything is done that would hang otherwise.

        One small all-gather, and another only where ranks disagree. Inside `agreed` nothing is asked.

        Args:
            what: What this rank is about to do, in words.
            device: Of this rank's work; it need not be one that the group's backend can send from.
            settings: What it was told, by name.

        Raises:
            RanksDisagreeError: On every rank, if they differ; says in what, and what each rank was told.
        """
        if self.world_size == 1 or self._agreed:
            return
        told = Told.of(what, settings)
        mine = torch.tensor([told.digest, len(told.sent)], device=self._sends_from(device))
        digests, sizes = zip(*(each.tolist() for each in self.from_all_ranks(mine)), strict=True)
        if len({*digests}) == 1:
            return
        sent = torch.zeros(max(sizes), dtype=torch.uint8)
        sent[: len(told.sent)] = torch.frombuffer(bytearray(told.sent), dtype=torch.uint8)
        parts = self.from_all_ranks(sent.to(mine.device))
        everyone = [Told.read(bytes(part[:size].tolist())) for part, size in zip(parts, sizes, strict=True)]
        raise RanksDisagreeError(
            f"ranks disagree on {difference(everyone)}; give every rank of a group the same "
            f"(this is rank {self.rank} of {self.world_size})"
        )

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """For whoever has made the ranks agree on all that is built inside: `agree` asks nothing there."""
        before, self._agreed = self._agreed, True
        try:
            yield
        finally:
            self._agreed = before

    @property
    def has_agreed(self) -> bool:
        """Whether this is inside `agreed`."""
        return self._agreed

    def _sends_from(self, device: torch.device | None) -> torch.device:
        """A device that the group's backend can send from: a layer may be on one that no backend knows."""
        if self.group is None or dist.get_backend(self.group) != "nccl":
            return torch.device("cpu")
        if device is not None and device.type == "cuda":
            return device
        return torch.device("cuda", torch.cuda.current_device())

    def count(self, kind: Collective, numel: int, element_bytes: int, *, fused: bool = False) -> None:
        """Counts one call, if calls are being counted.

        Args:
            kind: What it is.
            numel: Numbers in the whole, gathered or not yet scattered tensor.
            element_bytes: Bytes of each.
            fused: Whether the fused exchange makes it.
        """
        self._add(kind, bytes_sent(kind, numel, element_bytes, self.world_size), fused=fused)

    def _add(self, kind: Collective, sent: int, *, fused: bool) -> None:
        if self._traffic is not None:
            self._traffic.add(kind, sent)
            if fused:
                self._traffic.fused_calls[kind] = self._traffic.fused_calls.get(kind, 0) + 1

    def fuse_ghosts(self, device: torch.device) -> str:
        """Sets up the fused exchange once, if every rank can use it; all ranks must call it.

        Args:
            device: This rank's device.

        Returns:
            How ghosts, and sums that are as small, travel from now on, and why.
        """
        if self._ghost_choice is None:
            self._ghost_choice = choose_exchange(self.group, device, self._ghost_arena)
        choice = self._ghost_choice
        return f"{'collective' if choice.exchange is None else 'fused'}: {choice.reason}"

    @property
    def ghost_choice(self) -> ExchangeChoice | None:
        """Whether ghosts go by the fused exchange, and why; None before `fuse_ghosts`."""
        return self._ghost_choice

    @property
    def ghost_exchange(self) -> SymmetricExchange | None:
        """The fused exchange, if it was set up and every rank can use it."""
        return None if self._ghost_choice is None else self._ghost_choice.exchange

    def give_up(self, why: str) -> None:
        """Ends what this rank waits for in the group's collectives; may be called from another thread.

        Every wait, under way or to come, ends with `PeerGoneError` until the group is renewed. Exchanges
        that code outside of this class makes, DTensor's, end on CUDA only.

        Args:
            why: What happened to which rank.
        """
        self._gone = why
        if self.group is not None:
            abort(self.group)

    def renew(self, group: dist.ProcessGroup) -> None:
        """Goes on with a new group of the same ranks, after `give_up`; every rank must.

        Args:
            group: The new one.
        """
        self.group, self._gone, self._ghost_choice = group, None, None

    def _look_up(self) -> None:
        if self._gone is not None:
            raise PeerGoneError(f"rank {self.rank} waits in vain: {self._gone}")

    def _started(self, work: dist.Work | None) -> Pending:
        self._look_up()
        assert work is not None, "an asynchronous collective returns its handle"
        assert self.group is not None, "one rank alone starts no collective"
        return work if dist.get_backend(self.group) == "nccl" else SlicedWait(work, self._look_up)
