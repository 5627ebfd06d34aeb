"""PyTorch's tensor parallelism, checkpointing, TF32 and the fused exchange, as only GPUs can show them."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from phantom_core.plan import PlannedArm
from phantom_core.spec import Arm, DenseArm, ModelSpec, PhantomArm, TensorArm
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks
from tests.gpu.running import BOARDS, MOST_RANKS, RECIPES, TASK, Run, arms, gpu_ranks, plan, sizes, train

pytestmark = pytest.mark.skipif(BOARDS == 0, reason="needs a CUDA device")
several = pytest.mark.skipif(MOST_RANKS < 2, reason=f"needs 2 GPUs, there are {BOARDS}")
TOLERANCES = {"float64": 1e-11, "float32": 1e-3, "bfloat16": 5e-2}


def dtensor_and_native(dtype: str, compiled: bool) -> list[tuple[str, Run, Run, Run]]:
    if compiled:
        warnings.simplefilter("ignore")  # the compiler looks at things that warn
    dataset = load_task(TASK)
    told = []
    with gpu_ranks() as (group, device):
        for form in ("column_row", "gather"):
            native = TensorArm(name="native", world_size=2, form=form)
            peer = native.model_copy(
                update={"name": "dtensor", "implementation": "dtensor", "compiled": compiled}
            )
            runs = []
            for arm, graph in ((native, True), (peer, True), (peer, False)):
                planned = plan(arm, dtype, depth=5, **RECIPES["adamw"])
                with Trainer(planned, dataset, group=group, device=device, seed=3, graph=graph) as trainer:
                    runs.append(train(trainer))
            told.append((form, runs[0], runs[1], runs[2]))
    return told


@several
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dtensor_s_arm_trains_the_native_arm_s_model_and_in_a_graph_where_it_can(
    dtype: str, compiled: bool
) -> None:
    for rank in run_ranks(2, dtensor_and_native, dtype, compiled, deadline_s=500):
        for form, native, graph, eager in rank:
            # In torch 2.11 compiled DTensor code copies from the host, which can't be captured; the run says so.
            told = "can't be captured" in (graph.reason or "")
            assert graph.mode == "graph" or (compiled and told), (form, graph.reason)
            assert graph.losses == eager.losses, form
            assert all(map(math.isfinite, graph.losses)), form
            np.testing.assert_allclose(graph.losses[:20], native.losses[:20], rtol=TOLERANCES[dtype])
            assert graph.evaluations[-1] < graph.evaluations[0], form


@dataclass(frozen=True)
class Checkpointed:
    arm: str
    kept: Run
    graph: Run
    eager: Run
    peak_kept: int
    peak_anew: int


def checkpointed(p: int) -> list[Checkpointed]:
    dataset = load_task(TASK)
    told = []
    with gpu_ranks() as (group, device):
        for arm in arms(p):
            runs, peaks = [], []
            for anew, graph in ((False, True), (True, True), (True, False)):
                # Rows enough for activations to outweigh weights.
                planned = plan(
                    arm, batch_size=4_096, depth=12, activation_checkpointing=anew, **RECIPES["adamw"]
                )
                with Trainer(planned, dataset, group=group, device=device, seed=3, graph=graph) as trainer:
                    runs.append(train(trainer))
                    peaks.append(trainer.peak_memory_bytes() or 0)
            told.append(Checkpointed(arm.name, runs[0], runs[1], runs[2], peaks[0], peaks[2]))
    return told


@sizes
def test_activations_computed_anew_in_a_graph_change_no_bit_and_take_less_memory(p: int) -> None:
    for rank in run_ranks(p, checkpointed, p, deadline_s=500):
        for told in rank:
            assert told.graph.mode == "graph", (told.arm, told.graph.reason)
            assert all(map(math.isfinite, told.graph.losses)), told.arm
            assert told.graph.losses == told.eager.losses == told.kept.losses, told.arm
            assert told.peak_anew < told.peak_kept, told


def with_and_without_tf32(p: int) -> tuple[str, str, dict[bool, Run]]:
    dataset = load_task(TASK)
    matmul = torch.backends.cuda.matmul
    runs = {}
    with gpu_ranks() as (group, device):
        before = matmul.fp32_precision
        for tf32 in (True, False):
            planned = tf32_arm(arms(p)[-1], tf32)
            with Trainer(planned, dataset, group=group, device=device, seed=3) as trainer:
                runs[tf32] = train(trainer)
        return before, matmul.fp32_precision, runs


def tf32_arm(arm: Arm, tf32: bool) -> PlannedArm:
    planned = plan(arm, **RECIPES["adamw"])
    return planned.model_copy(update={"model": ModelSpec(width=512, depth=4, tf32=tf32)})


@sizes
@pytest.mark.skipif(
    BOARDS > 0 and torch.cuda.get_device_capability()[0] < 8, reason="TF32 needs compute capability 8.0"
)
def test_tf32_changes_the_result_a_little_and_is_given_back(p: int) -> None:
    for before, after, runs in run_ranks(p, with_and_without_tf32, p):
        assert before == after
        assert runs[True].losses != runs[False].losses
        np.testing.assert_allclose(runs[True].losses[:10], runs[False].losses[:10], rtol=2e-2)


def exchanges(p: int) -> list[tuple[str, Any]]:
    dataset = load_task(TASK)
    told = []
    with gpu_ranks() as (group, device):
        # The last one's ghosts are more than the fused exchange carries.
        wide = PhantomArm(name="wide", world_size=p, ghosts=100)
        for arm, rows in [*((arm, 128) for arm in arms(p)), (wide, 4_096)]:
            planned = plan(arm, batch_size=rows)
            with Trainer(planned, dataset, group=group, device=device) as trainer:
                trainer.prepare(1)
                told.append((arm.name, trainer.exchange))
    return told


@sizes
def test_what_carried_the_exchanges_is_told(p: int) -> None:
    for rank in run_ranks(p, exchanges, p) if p > 1 else []:
        used = dict(rank)
        if used["phantom"].name == "nccl":  # there is no fused exchange here, for all arms or for none
            assert {(each.name, each.reason) for each in used.values()} == {("nccl", used["phantom"].reason)}
            assert used["phantom"].reason is not None
            continue
        # Also the block-diagonal arm, which exchanges nothing but its outputs' sum.
        for arm in ("phantom", "low-rank", "column_row", "block-diagonal"):
            assert (used[arm].name, used[arm].reason) == ("symmetric_memory", None), arm
        assert used["wide"].name == used["gather"].name == "nccl"
        one = "1 of 9 exchanges of a step by the fused exchange"  # the outputs' sum
        assert used["gather"].reason == one
        assert used["wide"].reason == (
            "100 ghosts of 4,096 rows are more than the fused exchange carries, nccl is faster there; " + one
        )
    if p == 1:
        with Trainer(plan(DenseArm(name="d")), load_task(TASK), device="cuda") as trainer:
            assert trainer.exchange.name is None
