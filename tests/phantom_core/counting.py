"""Counts what a step really does: matrix FLOPs, bytes sent, and the most memory alive at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from phantom_core.collectives import Traffic
from phantom_core.cost import ArmCost, arm_cost
from phantom_core.ffn import FFN, build_ffn
from phantom_core.spec import Arm, FeaturePlacement
from tests.phantom_core.arms import planned


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
    peak_bytes: int


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest sum of the storages that tensors of this thread hold at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor):
                storage = StorageWeakRef(leaf.untyped_storage())  # type: ignore[no-untyped-call]
                self._live.setdefault(storage.cdata, (storage, leaf.untyped_storage().nbytes()))
        alive = {key for key, (storage, _) in self._live.items() if not storage.expired()}  # type: ignore[no-untyped-call]
        self._live = {key: self._live[key] for key in alive}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._live.values()))
        return out


def count(arm: Arm, placement: FeaturePlacement, p: int, **changes: Any) -> Counted:
    """Runs on every rank of p: builds the arm's network and counts one step of it."""
    plan, shape = planned(arm, **changes)
    ffn = build_ffn(plan, shape, placement)
    cost = arm_cost(plan, shape, placement)
    rows = plan.training.batch_size
    features = torch.randn(rows, shape.features // (p if placement == "split" else 1), dtype=dtype_of(ffn))
    targets = torch.randn(rows, shape.outputs, dtype=dtype_of(ffn))
    optimizer = (
        torch.optim.AdamW(ffn.parameters(), foreach=False)
        if plan.training.optimizer == "adamw"
        else torch.optim.SGD(ffn.parameters(), momentum=plan.training.momentum, foreach=False)
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(torch.nn.functional.mse_loss(ffn(features), targets))
        optimizer.step()

    step()  # so that gradients and optimizer state exist
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        ffn(features)
    with ffn.communicator.counting() as traffic, FlopCounterMode(display=False) as whole:
        step()
    with LiveMemory() as memory:
        step()
    return Counted(
        arm=arm.name,
        cost=cost,
        parameters=ffn.parameter_count(),
        parameters_here=sum(parameter.numel() for parameter in ffn.parameters()),
        forward_flops=forward.get_total_flops(),
        step_flops=whole.get_total_flops(),
        traffic=traffic,
        peak_bytes=memory.peak_bytes,
    )


def dtype_of(ffn: FFN) -> torch.dtype:
    return next(ffn.parameters()).dtype
