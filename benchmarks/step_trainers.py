"""The project's own trainers for timing steps, with weights that need not be saved, and with parts left out."""

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.silent import SilentCommunicator
from benchmarks.step_arms import StepArm, rows
from benchmarks.tick_windows import BoardWindow, measured
from benchmarks.workplace import Workplace
from phantom_core.collectives import Communicator
from phantom_core.cost import arm_cost
from phantom_core.layer_costs import layer_costs
from phantom_core.step_work import StepWork, step_work
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer
from phantom_core.training.optimizers import WeightUpdate
from ray_jobs.ranks import Team

WARM_UP_STEPS = 5
SETTLING_S = 0.15
"""How long an arm runs before the length of its steps is taken."""
RESERVE = 1.15
"""Memory that an arm is given, as a share of the formulas' estimate; and besides it"""
RESERVE_BYTES = 2**30
"""for workspaces and what the allocator can't use."""


class LibraryRanks(Communicator):
    """Ranks whose messages travel by the library's collectives, whatever else could carry them."""

    def fuse_ghosts(self, device: torch.device) -> str:  # noqa: ARG002
        """Nothing is fused."""
        return "collective: asked for"


class _OtherwiseRanks(Communicator):
    """A team's ranks with one switch the other way. They use the team's exchange.

    Arms take turns, so one is enough; and an exchange of its own would want memory mapped by these ranks alone, after
    which all ranks could map none any more (`ghost_exchange.choose_arena`).
    """

    def __init__(self, usual: Communicator) -> None:
        super().__init__(usual.group)
        self._usual = usual

    def fuse_ghosts(self, device: torch.device) -> str:
        """Sets up the team's exchange, unless it was."""
        told = self._usual.fuse_ghosts(device)
        self._ghost_choice = self._usual.ghost_choice
        return told


class RanksWithGhostsBeside(_OtherwiseRanks):
    """Ranks that make ghosts beside the local product, however large it is."""

    makes_ghosts_beside = True


class RanksWithGhostsInLine(_OtherwiseRanks):
    """Ranks that make ghosts before the local product, however small it is."""

    makes_ghosts_beside = False


class SplittingRanks(_OtherwiseRanks):
    """Ranks that make large products in parts."""

    splits_products = True


class UnsavedUpdate(WeightUpdate):
    """Keeps no copy of the weights on the host while a trainer warms up: they need not come back."""

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Leaves all as it is."""


class NoUpdate(UnsavedUpdate):
    """Leaves the optimizer out of a step."""

    @contextmanager
    def beside_backward(self, ranks: Communicator) -> Iterator[None]:  # noqa: ARG002
        """Nothing."""
        yield

    def step(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Built:
    """An arm that is ready, or why there is none."""

    trainer: Trainer | None
    """Prepared; None if it could not be built."""
    steps: int = 0
    """In a window."""
    peak_bytes: int | None = None
    """Most device memory on any rank; None on CPUs."""
    reason: str | None = None
    """Why there is no trainer."""


def communicator(arm: StepArm, team: Team, *, silent: bool) -> Communicator:
    """The arm's ranks, as it wants to speak to them."""
    if silent:
        return SilentCommunicator(team.compute.group)
    if arm.ghosts_beside is not None:
        ranks = RanksWithGhostsBeside if arm.ghosts_beside else RanksWithGhostsInLine
        return ranks(team.compute)
    if arm.splits_products:
        return SplittingRanks(team.compute)
    return LibraryRanks(team.compute.group) if arm.nccl_only else team.compute


def build(
    place: Workplace,
    team: Team,
    arm: StepArm,
    window_s: float,
    *,
    silent: bool = False,
    update: Callable[..., WeightUpdate] = UnsavedUpdate,
) -> Built:
    """Builds and prepares an arm on all ranks of its team, or on none of them.

    Args:
        place: This rank.
        team: The arm's ranks.
        arm: What to build.
        window_s: Seconds that a window is to last; decides its number of steps.
        silent: Whether nothing is sent.
        update: Makes the optimizer.
    """
    dataset = dataset_of(arm)
    lacking = _lacking_memory(place, team, arm)
    if lacking is not None:
        return Built(None, reason=lacking)
    trainer, reason = None, None
    try:
        ranks = communicator(arm, team, silent=silent)
        trainer = Trainer(arm.planned, dataset, group=ranks, device=place.device, seed=1, update=update)
        trainer.prepare(WARM_UP_STEPS)
        place.synchronize()
    except Exception as error:  # the sweep goes on without this arm, and says why
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    reasons = team.gather(reason)
    failed = [f"rank {rank}: {why}" for rank, why in enumerate(reasons) if why]
    if failed or trainer is None:
        # Not closed: that would free library workspaces which other arms' graphs still use.
        trainer = None
        gc.collect()
        return Built(None, reason="; ".join(failed[:2]))
    peaks = [peak for peak in team.gather(trainer.peak_memory_bytes()) if peak is not None]
    steps = max(1, math.ceil(window_s / _step_s(place, team, trainer)))
    return Built(trainer, steps, max(peaks, default=None))


def window(place: Workplace, team: Team, trainer: Trainer, steps: int) -> list[BoardWindow]:
    """Meters so many steps on all ranks of a team; every rank gets every device's part."""
    return team.gather(measured(team, place.meter, place.synchronize, lambda: trainer.run(steps)))


def in_turn(
    place: Workplace, team: Team, built: Mapping[str, tuple[Trainer, int]], rounds: int, seed: str
) -> dict[str, list[dict[str, Any]]]:
    """Windows of several trainers, round by round in shuffled order; every rank of the team must call.

    Args:
        place: This rank.
        team: The ranks of all of them.
        built: Each trainer with the steps of its window.
        rounds: How often each has its turn.
        seed: Of the order.

    Returns:
        A row for each round, by name, with its place in the round.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in built}
    for number in range(rounds):
        order = list(built)
        random.Random(f"{seed} {number}").shuffle(order)
        for position, name in enumerate(order):
            trainer, steps = built[name]
            rows[name].append({"position": position, **row_of(window(place, team, trainer, steps), steps)})
    return rows


def row_of(windows: list[BoardWindow], steps: int) -> dict[str, Any]:
    """A window as a row: milliseconds and joules per step, all devices together."""
    energies = [each.energy_mj for each in windows]
    doubts = [each.uncertainty_mj for each in windows]
    known = None not in energies
    return {
        "ms_per_step": 1_000 * max(each.duration_s for each in windows) / steps,
        "j_per_step": sum(each or 0.0 for each in energies) / 1_000 / steps if known else None,
        "j_per_step_bound": (
            sum(each or 0.0 for each in doubts) / 1_000 / steps if known and None not in doubts else None
        ),
        "window_s": max(each.duration_s for each in windows),
        "method": windows[0].method,
        "reason": next((each.reason for each in windows if each.energy_mj is None), None),
    }


def dataset_of(arm: StepArm) -> Dataset:
    """Rows enough for a few batches."""
    return rows(max(4_096, 2 * arm.planned.training.batch_size))


def communicates(arm: StepArm) -> bool:
    """Whether the arm's ranks send anything in a step: hidden layers' messages, or the outputs' sum."""
    dataset = dataset_of(arm)
    planned = arm.planned
    layers = layer_costs(
        planned.arm, planned.model, dataset.shape, dataset.placement, planned.training.batch_size
    )
    return planned.arm.world_size > 1 and any(layer.exchanges for layer, _ in layers)


def step_work_of(arm: StepArm) -> StepWork:
    """What a step of the arm does."""
    dataset = dataset_of(arm)
    return step_work(arm.planned, dataset.shape, dataset.placement)


def _step_s(place: Workplace, team: Team, trainer: Trainer) -> float:
    """Rank 0's seconds per step: all ranks must go on with one number, or their collectives don't match."""
    step_s = 0.0
    for steps in (5, None):
        steps = steps or max(3, min(500, math.ceil(SETTLING_S / step_s)))
        place.synchronize()
        start_s = time.perf_counter()
        trainer.run(steps)
        place.synchronize()
        step_s = team.from_first(max(1e-6, (time.perf_counter() - start_s) / steps))
    return step_s


def _lacking_memory(place: Workplace, team: Team, arm: StepArm) -> str | None:
    """Why the arm would not fit on some rank, if so.

    Asked before any of them begins: a rank that fails in the middle of a step leaves the others waiting in a
    collective.
    """
    dataset = dataset_of(arm)
    needed = needed_bytes(arm, dataset)
    least = least_free_bytes(place, team)
    if least is None or needed <= least:
        return None
    return f"needs about {needed / 1e9:.1f} GB by the formulas, {least / 1e9:.1f} GB are free"


def needed_bytes(arm: StepArm, dataset: Dataset) -> int:
    """Device memory that an arm is given."""
    cost = arm_cost(arm.planned, dataset.shape, dataset.placement)
    return int(RESERVE * cost.memory.peak_bytes) + RESERVE_BYTES


def least_free_bytes(place: Workplace, team: Team) -> int | None:
    """Device memory that is free on every rank, what torch keeps for next time included; None on CPUs."""
    free = None
    if place.on_gpu:
        kept = torch.cuda.memory_reserved(place.device) - torch.cuda.memory_allocated(place.device)
        free = torch.cuda.mem_get_info(place.device)[0] + kept
    return min((each for each in team.gather(free) if each is not None), default=None)
