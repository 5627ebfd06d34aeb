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
from phantom_core.training.exchange import ExchangeUsed, exchange_used

FUSED = ExchangeChoice(cast(SymmetricExchange, object()), "every rank reaches every other's memory")
NOT_FUSED = ExchangeChoice(None, "symmetric memory can't be set up: no NVLink")
PHANTOM = PhantomArm(name="p", world_size=2, ghosts=64)
LOW_RANK = LowRankArm(name="l", world_size=2, rank=512)
TENSOR = TensorArm(name="t", world_size=2)


def used(
    arm: Arm, choice: ExchangeChoice | None, *, rows: int = 256, width: int = 1_024, fused: Any = None
) -> ExchangeUsed:
    ranks = SimpleNamespace(group=object(), world_size=arm.world_size, ghost_choice=choice)
    planned = PlannedArm(
        arm=arm,
        model=ModelSpec(width=width, depth=2, dtype="bfloat16"),
        training=TrainingSpec(batch_size=rows, stop=StopAtSteps(steps=1)),
    )
    traffic = None if fused is None else Traffic(fused_calls=fused)
    return exchange_used(planned, cast(Communicator, ranks), traffic)


@pytest.fixture(autouse=True)
def _nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: "nccl")


@pytest.mark.parametrize("arm", [PHANTOM, LOW_RANK, TENSOR])
def test_small_messages_travel_by_the_fused_exchange(arm: Arm) -> None:
    assert used(arm, FUSED) == ExchangeUsed("symmetric_memory", None)


@pytest.mark.parametrize(
    ("arm", "width", "what"),
    [
        (PHANTOM, 1_024, "64 ghosts of 8,193 rows"),
        (LOW_RANK, 1_024, "sums of 512 inner values of 8,193 rows"),
        (TENSOR, 1_024, "sums of 1,024 neurons of 8,193 rows"),
    ],
)
def test_messages_that_are_too_large_go_by_the_library_and_that_is_said(
    arm: Arm, width: int, what: str
) -> None:
    told = used(arm, FUSED, rows=8_193, width=width)
    assert told.name == "nccl"
    assert str(told.reason).startswith(what)


def test_why_ghosts_are_not_fused_is_said() -> None:
    assert used(PHANTOM, NOT_FUSED) == ExchangeUsed("nccl", NOT_FUSED.reason)
    assert used(TENSOR, NOT_FUSED) == ExchangeUsed("nccl", None)


@pytest.mark.parametrize(
    "arm",
    [
        BlockDiagonalArm(name="b", world_size=2),
        TensorArm(name="t", world_size=2, form="gather"),
        TensorArm(name="t", world_size=2, implementation="dtensor"),
    ],
)
def test_layouts_whose_hidden_layers_know_only_the_library_say_so(arm: Arm) -> None:
    assert used(arm, FUSED) == ExchangeUsed("nccl", None)


def test_sums_of_the_outputs_alone_do_not_make_the_hidden_layers_exchange_fused() -> None:
    assert used(PHANTOM, FUSED, fused={"all_reduce": 1}) == ExchangeUsed("nccl", None)
    assert used(PHANTOM, FUSED, fused={"all_gather": 2, "all_reduce": 1}).name == "symmetric_memory"
