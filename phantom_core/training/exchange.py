"""What carried a run's exchanges: told with the run, since it decides what small messages cost."""

from dataclasses import dataclass

import torch.distributed as dist

from phantom_core.collectives import Communicator, Traffic
from phantom_core.cost import bytes_per_number
from phantom_core.ghost_exchange import MOST_BYTES
from phantom_core.plan import PlannedArm
from phantom_core.protocol import Exchange
from phantom_core.spec import PhantomArm


@dataclass(frozen=True)
class ExchangeUsed:
    """How what ranks send each other travels."""

    name: Exchange | None
    """`symmetric_memory` for ghosts by the fused exchange, else the backend; None where nothing is sent."""
    reason: str | None
    """Why ghosts don't travel by the fused exchange, or why nothing is sent; None if there is nothing to say."""


def wants_fused_exchange(planned: PlannedArm) -> bool:
    """Whether an arm's ghosts are few enough for the fused exchange to carry them in training."""
    arm = planned.arm
    if not isinstance(arm, PhantomArm) or arm.world_size == 1:
        return False
    size_bytes = arm.ghosts * planned.training.batch_size * bytes_per_number(planned.model.dtype)
    return size_bytes <= MOST_BYTES


def exchange_used(planned: PlannedArm, ranks: Communicator, traffic: Traffic | None) -> ExchangeUsed:
    """Says how an arm's hidden layers exchange.

    Args:
        planned: The arm.
        ranks: Its ranks, after its model was built.
        traffic: What was counted in one of its training steps; None if no step was counted, in which case
            the fused exchange is taken to be used if it was set up.
    """
    if ranks.group is None or ranks.world_size == 1:
        return ExchangeUsed(None, "one rank exchanges nothing")
    backend: Exchange = "nccl" if dist.get_backend(ranks.group) == "nccl" else "gloo"
    choice = ranks.ghost_choice
    if not isinstance(planned.arm, PhantomArm) or choice is None:
        return ExchangeUsed(backend, None)
    k, b = planned.arm.ghosts, planned.training.batch_size
    too_many = f"{k} ghosts of {b} rows are more than the fused exchange carries, {backend} is faster there"
    if choice.exchange is None:
        # Where it was never going to be used it may not have been set up at all.
        unwanted = backend == "nccl" and not wants_fused_exchange(planned)
        return ExchangeUsed(backend, too_many if unwanted else choice.reason)
    if traffic is None or traffic.fused_calls:
        return ExchangeUsed("symmetric_memory", None)
    return ExchangeUsed(backend, too_many)
