"""What carried a run's exchanges: told with the run, since it decides what small messages cost."""

from dataclasses import dataclass

import torch.distributed as dist

from phantom_core.collectives import Communicator, Traffic
from phantom_core.cost import bytes_per_number
from phantom_core.layer_costs import Collective, fits_fused
from phantom_core.plan import PlannedArm
from phantom_core.protocol import Exchange
from phantom_core.spec import LowRankArm, PhantomArm, TensorArm


@dataclass(frozen=True)
class ExchangeUsed:
    """How what ranks send each other travels."""

    name: Exchange | None
    """`symmetric_memory` for the fused exchange, else the backend; None where nothing is sent."""
    reason: str | None
    """Why messages don't travel by the fused exchange, or why nothing is sent; None if there is nothing to say."""


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
    choice, message = ranks.ghost_choice, _small_message(planned)
    if message is None or choice is None:
        return ExchangeUsed(backend, None)
    if choice.exchange is None:
        return ExchangeUsed(backend, choice.reason if isinstance(planned.arm, PhantomArm) else None)
    if not fits_fused(message.elements * bytes_per_number(planned.model.dtype), ranks.world_size):
        too_many = f"{message.what} are more than the fused exchange carries, {backend} is faster there"
        return ExchangeUsed(backend, too_many)
    if traffic is None or message.kind in traffic.fused_calls:
        return ExchangeUsed("symmetric_memory", None)
    return ExchangeUsed(backend, None)


@dataclass(frozen=True)
class _Message:
    kind: Collective
    elements: int
    what: str


def _small_message(planned: PlannedArm) -> _Message | None:
    """The whole tensor of an arm's hidden layer's exchange, if the fused exchange knows that kind."""
    arm, b = planned.arm, planned.training.batch_size
    match arm:
        case PhantomArm():
            return _Message(
                "all_gather", arm.world_size * arm.ghosts * b, f"{arm.ghosts:,} ghosts of {b:,} rows"
            )
        case LowRankArm():
            return _Message("all_reduce", arm.rank * b, f"sums of {arm.rank:,} inner values of {b:,} rows")
        case TensorArm(form="column_row", implementation="native"):
            n = planned.model.width
            return _Message("all_reduce", n * b, f"sums of {n:,} neurons of {b:,} rows")
        case _:
            return None
