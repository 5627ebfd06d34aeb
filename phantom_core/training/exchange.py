"""What carried a run's exchanges: told with the run, since it decides what small messages cost."""

from dataclasses import dataclass

import torch.distributed as dist

from phantom_core.collectives import Communicator, Traffic
from phantom_core.cost import bytes_per_number
from phantom_core.layer_costs import fits_fused
from phantom_core.layer_segments import Transfer
from phantom_core.plan import PlannedArm
from phantom_core.protocol import Exchange
from phantom_core.spec import FeaturePlacement, LowRankArm, PhantomArm
from phantom_core.step_work import step_work
from phantom_core.task_shapes import TaskShape


@dataclass(frozen=True)
class ExchangeUsed:
    """How what ranks send each other in a step travels."""

    name: Exchange | None
    """What carries most of a step's exchanges, the library's of equally many: `symmetric_memory` for the fused
    exchange, else the backend; None where nothing is sent."""
    reason: str | None
    """What goes otherwise, and why not all goes by the fused exchange, or why nothing is sent; None if there is
    nothing to say."""


def exchange_used(
    planned: PlannedArm,
    shape: TaskShape,
    placement: FeaturePlacement,
    ranks: Communicator,
    traffic: Traffic | None,
) -> ExchangeUsed:
    """Says how an arm's ranks exchange in a step: all of it, the hidden layers' messages and the outputs' sum.

    Args:
        planned: The arm.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        ranks: Its ranks, after its model was built.
        traffic: What was counted in one of its training steps; None if no step was counted, in which case
            the fused exchange is taken to carry what it can if it was set up.
    """
    if ranks.group is None or ranks.world_size == 1:
        return ExchangeUsed(None, "one rank exchanges nothing")
    backend: Exchange = "nccl" if dist.get_backend(ranks.group) == "nccl" else "gloo"
    choice = ranks.ghost_choice
    if choice is None or choice.exchange is None:
        return ExchangeUsed(backend, None if choice is None else choice.reason)
    transfers = step_work(planned, shape, placement).transfers
    number_bytes = bytes_per_number(planned.model.dtype)
    small = [fits_fused(each.elements * number_bytes, ranks.world_size) for each in transfers]
    if traffic is None:
        carried = sum(each.fusable and fits for each, fits in zip(transfers, small, strict=True))
        total = len(transfers)
    else:
        carried, total = sum(traffic.fused_calls.values()), sum(traffic.calls.values())
    if carried == total:
        return ExchangeUsed("symmetric_memory", None)
    said = [
        f"{_what(planned, shape, each)} are more than the fused exchange carries, {backend} is faster there"
        for each, fits in zip(transfers, small, strict=True)
        if each.fusable and not fits
    ]
    mostly_fused = 2 * carried > total
    if carried:
        fewer, by = (total - carried, backend) if mostly_fused else (carried, "the fused exchange")
        said.append(f"{fewer} of {total} exchanges of a step by {by}")
    return ExchangeUsed(
        "symmetric_memory" if mostly_fused else backend, "; ".join(dict.fromkeys(said)) or None
    )


def _what(planned: PlannedArm, shape: TaskShape, message: Transfer) -> str:
    """What a message that the fused exchange knows consists of."""
    arm, rows = planned.arm, f"{planned.training.batch_size:,} rows"
    if message.elements == shape.outputs * planned.training.batch_size:
        return f"sums of {shape.outputs:,} outputs of {rows}"
    match arm:
        case PhantomArm():
            return f"{arm.ghosts:,} ghosts of {rows}"
        case LowRankArm():
            return f"sums of {arm.rank:,} inner values of {rows}"
        case _:
            return f"sums of {planned.model.width:,} neurons of {rows}"
