"""The worker group's process groups: one for all ranks, one for every size of arm.

Compute groups run NCCL on GPUs and gloo on CPUs. Control groups are always gloo: barriers and small
objects go over them, so that a rank that waits does so on its CPU and never inside an NCCL kernel,
which would burn power on a board that should idle.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from phantom_core.collectives import Communicator
from phantom_core.ghost_exchange import ArenaChoice, choose_arena
from ray_jobs.alarm import Alarm

T = TypeVar("T")

_ALARM_CONNECTS_S = 60.0
_NO_ARENA = ArenaChoice(None, "no arm was planned to use the fused exchange")
COMPUTE_TIMEOUT = timedelta(minutes=10)
"""A collective that takes longer than this has lost a peer."""


@dataclass(frozen=True)
class Team:
    """The ranks of one arm: 0 ... p - 1 of the worker group."""

    rank: int
    """This rank."""
    size: int
    """Ranks in the team, p."""
    compute: Communicator
    """For the model's collectives; made once, so that what it sets up serves all runs of the team."""
    control: dist.ProcessGroup
    """For barriers and small objects, on the CPU."""

    def agree(self, ok: bool) -> bool:
        """A barrier that carries a vote: waits for every rank of the team.

        Args:
            ok: Whether all is well on this rank.

        Returns:
            Whether all is well on all of them.
        """
        vote = torch.tensor([int(ok)])
        dist.all_reduce(vote, op=dist.ReduceOp.MIN, group=self.control)
        return bool(vote.item())

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: T) -> T:
        """Rank 0's value."""
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]  # type: ignore[no-any-return]


class Arenas:
    """Where ghosts of each size of team are stored for peers; mapped once, for as long as the worker group lives.

    Args:
        device: This rank's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chosen: dict[int, ArenaChoice] = {}

    def of(self, size: int, everyone: dist.ProcessGroup) -> ArenaChoice:
        """A team's arena; all ranks of the worker group must ask, also those outside the team (`choose_arena`).

        Args:
            size: Of the team.
            everyone: All ranks of the worker group.
        """
        if size not in self._chosen:
            self._chosen[size] = choose_arena(everyone, self._device)
        return self._chosen[size]


class Ranks:
    """All ranks of the worker group, as this one sees them; a context manager."""

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        store: Store | None,
        device: torch.device,
        sizes: Iterable[int],
        longest_wait_s: float,
        arenas: Arenas | None = None,
        alarm_host: str | None = None,
    ) -> None:
        """Joins the other ranks.

        Args:
            rank: This rank.
            world_size: Ranks in the worker group.
            store: Where they meet (`meet`); None if this process has joined them (`joined`).
            device: This rank's device; decides between NCCL and gloo.
            sizes: World sizes of the arms, which may use the fused exchange; the same on every rank.
            longest_wait_s: Seconds that a rank outside an arm may have to wait.
            arenas: Those of the worker group, so that its experiments share them; None for new ones.
            alarm_host: This host, under which the others reach it, so that a rank which fails can free the
                others (`alarm`); None leaves them to their time-outs.
        """
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        wait = timedelta(seconds=longest_wait_s)
        self._arenas = Arenas(device) if arenas is None else arenas
        self._groups: list[dist.ProcessGroup] = []
        self._alarm: Alarm | None = None
        self._store_address: tuple[str, int] | None = None
        self._resources = ExitStack()
        if store is not None:
            self._resources.enter_context(joined(rank, world_size, store, wait))
        try:
            self._teams = self._make_teams(set(sizes), wait)
            if alarm_host is not None:
                self._alarm = self._open_alarm(alarm_host)
        except BaseException:
            self.close()
            raise

    @property
    def everyone(self) -> Team:
        """The team of all ranks."""
        return self._teams[self.world_size]

    def team(self, size: int) -> Team | None:
        """The team of an arm of that size; None if this rank is outside it."""
        return self._teams.get(size)

    def raise_alarm(self, size: int, error: BaseException) -> None:
        """Tells the others that this rank will not come to a team's collectives any more.

        Args:
            size: Of the team.
            error: What happened here.
        """
        if self._alarm is None:
            return
        what = (str(error).splitlines() or [""])[0][:300]
        self._alarm.ring(f"{size} rank {self.rank} failed: {type(error).__name__}: {what}")

    def store(self) -> TCPStore:
        """A new connection to the store in which ranks ring and beat; there is one where there is an alarm."""
        assert self._store_address is not None, "the ranks have no alarm"
        host, port = self._store_address
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_ALARM_CONNECTS_S))

    def renew(self, size: int) -> None:
        """Makes a team's compute group anew after an alarm; all ranks, of whatever team, must call it.

        Args:
            size: Of the team.
        """
        if self._alarm is None:
            return
        self._alarm.reset()
        compute = self._compute_group(size)
        team = self._teams.get(size) if self.rank < size else None
        if team is not None:
            self._groups.append(compute)
            team.compute.renew(compute)

    def _open_alarm(self, host: str) -> Alarm:
        wait = timedelta(seconds=_ALARM_CONNECTS_S)
        bell = meet(self.rank, host, self.everyone.from_first, wait)
        self._store_address = bell.host, bell.port
        ear = TCPStore(bell.host, bell.port, is_master=False, timeout=wait)
        return Alarm(bell, ear, self._give_up)

    def _give_up(self, told: str) -> None:
        size, _, why = told.partition(" ")
        team = self._teams.get(int(size))
        if team is not None:
            team.compute.give_up(why)

    def _make_teams(self, arms: set[int], wait: timedelta) -> dict[int, Team]:
        """All ranks make all groups, in one order; each keeps those that it is in."""
        groups = {}
        for size in sorted({*arms, self.world_size}):
            control = dist.new_group(list(range(size)), backend="gloo", timeout=wait)
            groups[size] = self._compute_group(size), control
        everyone, _ = groups[self.world_size]
        teams = {}
        for size, (compute, control) in groups.items():
            arena = _NO_ARENA
            if size > 1 and size in arms:
                arena = self._arenas.of(size, everyone)
            if self.rank < size:
                self._groups += [compute, control]
                teams[size] = Team(self.rank, size, Communicator(compute, arena), control)
        return teams

    def _compute_group(self, size: int) -> dist.ProcessGroup:
        options = None
        if self.backend == "nccl":
            # First in line: peers wait for its kernels, while a GEMM beside them can wait for a multiprocessor.
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        group: dist.ProcessGroup = dist.new_group(
            list(range(size)), backend=self.backend, timeout=COMPUTE_TIMEOUT, pg_options=options
        )
        return group

    def close(self) -> None:
        """Leaves all groups that it made or joined."""
        # The alarm's thread first: it may end collectives of the groups.
        if self._alarm is not None:
            self._alarm.close()
        while self._groups:
            dist.destroy_process_group(self._groups.pop())
        self._teams = {}
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@contextmanager
def joined(rank: int, world_size: int, store: Store, longest_wait: timedelta) -> Iterator[None]:
    """The default group, which carries nothing; all others are made from it.

    A worker group that makes several experiments stays in it: torch counts the names of groups from it, and what
    symmetric memory knows of a name it never forgets.

    Args:
        rank: This rank.
        world_size: Ranks in the worker group.
        store: Where they meet (`meet`).
        longest_wait: How long to wait for the others.
    """
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=longest_wait)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def meet(
    rank: int,
    host: str,
    from_first: Callable[[str], str],
    longest_wait: timedelta,
) -> TCPStore:
    """A store that ranks share: rank 0 serves it, at a port that the system chose and that nobody can take meanwhile.

    Args:
        rank: This rank.
        host: This host, under which the others reach it.
        from_first: Gives every rank what rank 0 says.
        longest_wait: How long to wait for the others.
    """
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=longest_wait)
        from_first(f"{host}:{store.port}")
        return store
    address, _, port = from_first("").rpartition(":")
    return TCPStore(address, int(port), is_master=False, timeout=longest_wait)


def use_interface_of(host: str) -> None:
    """Keeps gloo and NCCL on loopback when the whole group is on one host that only knows loopback."""
    if host.startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
