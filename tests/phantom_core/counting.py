"""Counts what a step really does: matrix FLOPs, bytes sent, and the most memory alive at once."""

import gc
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from phantom_core.collectives import Traffic
from phantom_core.cost import ArmCost, arm_cost
from phantom_core.ffn import FFN, build_ffn
from phantom_core.layouts.local_part import local_part
from phantom_core.spec import Arm, FeaturePlacement
from phantom_core.training.losses import loss_dtype, loss_gradient
from phantom_core.training.optimizers import WeightUpdate
from tests.phantom_core.arms import planned

_STEPS_FOR_MEMORY = 12


@dataclass(frozen=True)
class Counted:
    """One arm's step, by the formulas and as counted on one rank."""

    arm: str
    cost: ArmCost
    parameters: int
    parameters_here: int
    forward_flops: int
    step_flops: int
    traffic: Traffic
    peak_bytes: int | None
    """The least of some steps: a buffer counts until the backend's thread lets go of it, which may be late."""


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest sum of the storages alive at once, those of tensors that existed before included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        gc.collect()
        # By type: some objects warn when isinstance asks for their class.
        self._see(held for held in gc.get_objects() if issubclass(type(held), torch.Tensor))

    def _see(self, leaves: Iterable[object]) -> None:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and not hasattr(leaf, "to_local"):  # whose local part counts
                storage = StorageWeakRef(leaf.untyped_storage())  # type: ignore[no-untyped-call]
                self._live.setdefault(storage.cdata, (storage, leaf.untyped_storage().nbytes()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # what a DTensor does here is seen when it does it
        out = func(*args, **(kwargs or {}))
        self._see(tree_iter((args, kwargs, out)))
        alive = {key for key, (storage, _) in self._live.items() if not storage.expired()}  # type: ignore[no-untyped-call]
        self._live = {key: self._live[key] for key in alive}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._live.values()))
        return out


class LocalFlops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """FLOPs of matrix products on this rank by torch's own formulas; DTensors count as what they run here."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def count(arm: Arm, placement: FeaturePlacement, p: int, **changes: Any) -> Counted:
    """Runs on every rank of p: builds the arm's network and counts one step of it."""
    loss = changes.pop("loss", "mean_squared_error")
    plan, shape = planned(arm, **changes)
    shape = shape.model_copy(update={"loss": loss})
    ffn = build_ffn(plan, shape, placement)
    cost = arm_cost(plan, shape, placement, one_pass=False)
    rows = plan.training.batch_size
    features = torch.randn(rows, shape.features // (p if placement == "split" else 1), dtype=dtype_of(ffn))
    targets = torch.randn(rows, shape.outputs, dtype=loss_dtype(dtype_of(ffn)))
    if loss == "cross_entropy":
        targets = torch.randint(shape.outputs, (rows,))
    update = WeightUpdate(ffn, plan.training, torch.device("cpu"))
    beside = plan.training.update == "overlapped"

    def step() -> None:  # as `Trainer` makes it
        update.zero_grad()
        outputs = ffn(features)
        gradient, make_loss = loss_gradient(shape, outputs, targets)
        make_loss()
        with update.beside_backward(ffn.communicator) if beside else nullcontext():
            torch.autograd.backward(outputs, gradient)
        update.step()

    step()
    with LocalFlops() as forward, torch.no_grad():
        ffn(features)
    with ffn.counting() as traffic, LocalFlops() as whole:
        step()
    peaks = []
    # Smaller networks say nothing about memory that counts.
    if plan.model.depth > 2:
        with LiveMemory() as memory:  # once: to look for all that lives takes longer than a step
            for _ in range(_STEPS_FOR_MEMORY):
                memory.peak_bytes = 0
                step()
                peaks.append(memory.peak_bytes)
    return Counted(
        arm=arm.name,
        cost=cost,
        parameters=ffn.parameter_count(),
        parameters_here=sum(local_part(parameter).numel() for parameter in ffn.parameters()),
        forward_flops=forward.total,
        step_flops=whole.total,
        traffic=traffic,
        peak_bytes=min(peaks, default=None),
    )


def dtype_of(ffn: FFN) -> torch.dtype:
    return next(ffn.parameters()).dtype
