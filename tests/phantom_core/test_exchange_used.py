"""What a run is told to have been carried by: the fused exchange or the library, and why."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist

from phantom_core.collectives import Communicator, Traffic
from phantom_core.ghost_exchange import ExchangeChoice, SymmetricExchange
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    StopAtSteps,
    TensorArm,
    TrainingSpec,
)
from phantom_core.task_shapes import TaskShape
from phantom_core.training.exchange import ExchangeUsed, exchange_used

FUSED = ExchangeChoice(cast(SymmetricExchange, object()), "every rank reaches every other's memory")
NOT_FUSED = ExchangeChoice(None, "symmetric memory can't be set up: no NVLink")
PHANTOM = PhantomArm(name="p", world_size=2, ghosts=64)
LOW_RANK = LowRankArm(name="l", world_size=2, rank=512)
TENSOR = TensorArm(name="t", world_size=2)
BLOCK_DIAGONAL = BlockDiagonalArm(name="b", world_size=2)


OUTPUTS = 8


def used(
    arm: Arm,
    choice: ExchangeChoice | None,
    *,
    rows: int = 256,
    outputs: int = OUTPUTS,
    calls: Any = None,
    fused: Any = None,
) -> ExchangeUsed:
    ranks = SimpleNamespace(group=object(), world_size=arm.world_size, ghost_choice=choice)
    planned = PlannedArm(
        arm=arm,
        model=ModelSpec(width=1_024, depth=2, dtype="bfloat16"),
        training=TrainingSpec(batch_size=rows, stop=StopAtSteps(steps=1)),
    )
    shape = TaskShape(features=64, outputs=outputs, loss="mean_squared_error")
    traffic = None if calls is None else Traffic(calls=calls, fused_calls=fused)
    return exchange_used(planned, shape, "split", cast(Communicator, ranks), traffic)


@pytest.fixture(autouse=True)
def _nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: "nccl")


@pytest.mark.parametrize("arm", [PHANTOM, LOW_RANK, TENSOR, BLOCK_DIAGONAL])
def test_small_messages_travel_by_the_fused_exchange(arm: Arm) -> None:
    assert used(arm, FUSED) == ExchangeUsed("symmetric_memory", None)


@pytest.mark.parametrize(
    ("arm", "what", "sums"),
    [
        (PHANTOM, "64 ghosts of 8,193 rows", "1 of 5"),
        (LOW_RANK, "sums of 512 inner values of 8,193 rows", "1 of 5"),
        (TENSOR, "sums of 1,024 neurons of 8,193 rows", "1 of 3"),
    ],
)
def test_messages_that_are_too_large_go_by_the_library_and_that_is_said(
    arm: Arm, what: str, sums: str
) -> None:
    why = f"{what} are more than the fused exchange carries, nccl is faster there"
    assert used(arm, FUSED, rows=8_193) == ExchangeUsed(
        "nccl", f"{why}; {sums} exchanges of a step by the fused exchange"
    )


def test_an_outputs_sum_that_is_too_large_is_said_beside_ghosts_that_are_not() -> None:
    why = "sums of 5,000 outputs of 256 rows are more than the fused exchange carries, nccl is faster there"
    told = used(PHANTOM, FUSED, outputs=5_000)
    assert told == ExchangeUsed("symmetric_memory", f"{why}; 1 of 5 exchanges of a step by nccl")
    assert used(BLOCK_DIAGONAL, FUSED, outputs=5_000) == ExchangeUsed("nccl", why)


@pytest.mark.parametrize("arm", [PHANTOM, TENSOR, BLOCK_DIAGONAL])
def test_why_the_fused_exchange_is_not_used_is_said(arm: Arm) -> None:
    assert used(arm, NOT_FUSED) == ExchangeUsed("nccl", NOT_FUSED.reason)
    assert used(arm, None) == ExchangeUsed("nccl", None)


@pytest.mark.parametrize(
    ("arm", "total"),
    [
        (TensorArm(name="t", world_size=2, form="gather"), 5),
        (TensorArm(name="t", world_size=2, implementation="dtensor"), 3),
    ],
)
def test_layouts_whose_hidden_layers_know_only_the_library_say_so(arm: Arm, total: int) -> None:
    assert used(arm, FUSED) == ExchangeUsed("nccl", f"1 of {total} exchanges of a step by the fused exchange")


def test_what_was_counted_in_a_step_is_told_rather_than_what_was_to_be_expected() -> None:
    calls = {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    assert used(PHANTOM, FUSED, calls=calls, fused=calls) == ExchangeUsed("symmetric_memory", None)
    told = used(PHANTOM, FUSED, calls=calls, fused={"all_reduce": 1})
    assert told == ExchangeUsed("nccl", "1 of 5 exchanges of a step by the fused exchange")
    half = used(PHANTOM, FUSED, calls={"all_gather": 2}, fused={"all_gather": 1})
    assert half == ExchangeUsed("nccl", "1 of 2 exchanges of a step by the fused exchange")
    assert used(PHANTOM, FUSED, calls=calls, fused={}) == ExchangeUsed("nccl", None)
    # A block-diagonal arm's only exchange is its outputs' sum.
    only = {"all_reduce": 1}
    assert used(BLOCK_DIAGONAL, FUSED, calls=only, fused=only) == ExchangeUsed("symmetric_memory", None)
    assert used(BLOCK_DIAGONAL, FUSED, calls=only, fused={}) == ExchangeUsed("nccl", None)
