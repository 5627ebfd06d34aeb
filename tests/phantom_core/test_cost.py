"""The cost model's numbers are those of built models and counted steps, and it knows where ghosts pay."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phantom_core.cost import (
    ArmCost,
    arm_cost,
    arm_parameters,
    break_even_ghosts,
    data_bytes,
    frugal_world_size,
)
from phantom_core.ffn import build_ffn
from phantom_core.layer_costs import bytes_sent
from phantom_core.spec import BlockDiagonalArm, LowRankArm, PhantomArm, TensorArm
from phantom_core.task_shapes import TaskShape
from phantom_core.training import optimizers
from phantom_core.training.optimizers import WeightUpdate
from tests.distributed import run_ranks
from tests.phantom_core.arms import dtensor_arms, every_arm, planned
from tests.phantom_core.counting import Counted, LiveMemory, count

CONDITIONS: list[dict[str, Any]] = [
    {"depth": 1, "placement": "whole", "width": 24, "batch_size": 7},
    {"depth": 2, "placement": "split", "width": 48, "bias": False, "dtype": "float64", "optimizer": "sgd"},
    {"depth": 5, "placement": "split", "width": 96, "batch_size": 64, "activation": "gelu"},
    {
        "depth": 4,
        "placement": "whole",
        "width": 192,
        "dtype": "bfloat16",
        "optimizer": "sgd",
        "momentum": 0.9,
    },
    {
        "depth": 5,
        "placement": "split",
        "width": 96,
        "batch_size": 512,
        "activation": "gelu",
        "activation_checkpointing": True,
    },
    {
        "depth": 6,
        "placement": "whole",
        "width": 96,
        "batch_size": 512,
        "dtype": "float64",
        "optimizer": "sgd",
        "activation_checkpointing": True,
    },
    *(
        {
            "depth": 3,
            "placement": "whole",
            "width": 96,
            "batch_size": 512,
            "outputs": 600,
            "dtype": dtype,
            "loss": loss,
            "optimizer": "sgd",
            "update": update,
        }
        for dtype, update, loss in (
            ("bfloat16", "overlapped", "mean_squared_error"),
            ("bfloat16", "after", "cross_entropy"),
            ("float32", "overlapped", "cross_entropy"),
        )
    ),
]


def count_all(p: int) -> list[Counted]:
    """Runs on every rank."""
    arms = every_arm(p) + dtensor_arms(p)
    return [count(arm, p=p, **condition) for condition in CONDITIONS for arm in arms]


@pytest.fixture(scope="module", params=[1, 2, 3])
def counted(request: pytest.FixtureRequest) -> list[list[Counted]]:
    """By rank, then by arm and condition."""
    return run_ranks(request.param, count_all, request.param)


def test_parameters_are_those_of_the_built_model(counted: list[list[Counted]]) -> None:
    for rank in counted:
        for item in rank:
            assert item.cost.parameters == item.parameters, item.arm
            assert item.cost.parameters_per_rank == item.parameters_here, item.arm


def test_flops_are_those_that_torch_counts(counted: list[list[Counted]]) -> None:
    for rank in counted:
        for item in rank:
            assert item.cost.forward_flops_per_rank == item.forward_flops, item.arm
            assert item.cost.step_flops_per_rank == item.step_flops, item.arm


def test_bytes_and_calls_are_those_that_the_collectives_count(counted: list[list[Counted]]) -> None:
    for rank in counted:
        for item in rank:
            assert {cost.kind: cost.calls for cost in item.cost.collectives} == item.traffic.calls, item.arm
            sent = {cost.kind: cost.bytes_sent for cost in item.cost.collectives}
            assert sent == item.traffic.bytes_sent, item.arm
            assert item.cost.bytes_sent_per_rank == item.traffic.total_bytes_sent, item.arm


def test_the_memory_estimate_covers_what_a_step_holds_without_exaggerating(
    counted: list[list[Counted]],
) -> None:
    measured = [item for rank in counted for item in rank if item.peak_bytes is not None]
    assert measured
    for item in measured:
        share = item.cost.memory.peak_bytes / (item.peak_bytes or 0)
        # Some scalars, a loss say, are left out.
        assert 0.999 <= share <= 1.6, (item.arm, item.peak_bytes, item.cost)


def hidden_cost(arm: Any, n: int, b: int = 8) -> tuple[int, ArmCost]:
    """Weights of one hidden layer over all ranks, and the arm's cost."""
    changes: dict[str, Any] = {"width": n, "depth": 1, "bias": False, "batch_size": b, "dtype": "float32"}
    plan, shape = planned(arm, **changes)
    deeper, _ = planned(arm, **changes | {"depth": 3})
    cost = arm_cost(plan, shape, "whole")
    return (arm_cost(deeper, shape, "whole").parameters - cost.parameters) // 2, cost


@given(p=st.integers(2, 8), m=st.integers(3, 60), data=st.data())
def test_ghosts_pay_exactly_where_the_mathematics_says(p: int, m: int, data: st.DataObject) -> None:
    k, n = data.draw(st.integers(1, 2 * m)), p * m
    weights, phantom = hidden_cost(PhantomArm(name="p", world_size=p, ghosts=k), n)
    tensor_weights, tensor = hidden_cost(TensorArm(name="t", world_size=p, form="gather"), n)
    assert weights == p * (m * m + k * m + (p - 1) * k * m)
    assert (phantom.bytes_sent < tensor.bytes_sent) == (k < m)
    assert (weights < tensor_weights) == (k < break_even_ghosts(n, p))
    assert (phantom.step_flops < tensor.step_flops) == (k < break_even_ghosts(n, p))


@given(root=st.integers(2, 12), k=st.integers(1, 5))
def test_all_ranks_together_have_the_fewest_weights_at_the_square_root_of_n_over_k(root: int, k: int) -> None:
    n = k * root**2 * 12
    counts = {
        p: hidden_cost(PhantomArm(name="p", world_size=p, ghosts=k), n)[0]
        for p in range(2, 200)
        if n % p == 0
    }
    best = frugal_world_size(n, k)
    ordered = sorted(counts)
    below, above = [p for p in ordered if p <= best], [p for p in ordered if p >= best]
    assert [counts[p] for p in below] == sorted((counts[p] for p in below), reverse=True)
    assert [counts[p] for p in above] == sorted(counts[p] for p in above)


@pytest.mark.parametrize(
    ("arm", "forward_and_backward"),
    [
        (TensorArm(name="t", world_size=4, form="gather"), 2 * 3 * 8 * 16 * 4),
        (PhantomArm(name="p", world_size=4, ghosts=3), 2 * 3 * 8 * 3 * 4),
        (BlockDiagonalArm(name="b", world_size=4), 0),
        (LowRankArm(name="l", world_size=4, rank=6), 2 * 2 * 3 * 8 * 6 * 4 // 4),
    ],
)
def test_bytes_of_a_hidden_layer_are_the_mathematics_document_s(arm: Any, forward_and_backward: int) -> None:
    """Per rank, float32, p = 4, m = 16, b = 8: (p-1) b m e, (p-1) b k e, 0, 2 (p-1)/p b r e, twice each."""
    output = 2 * 3 * 8 * 3 * 4 // 4  # all-reduce of (b, outputs = 3)
    assert hidden_cost(arm, 64)[1].bytes_sent_per_rank == forward_and_backward + output


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_column_row_sends_one_all_reduce_per_pair_and_direction(depth: int) -> None:
    plan, shape = planned(TensorArm(name="t", world_size=4), width=64, depth=depth)
    calls = {cost.kind: cost.calls for cost in arm_cost(plan, shape, "whole").collectives}
    pairs, alone = divmod(depth, 2)
    expected = {"all_reduce": 2 * pairs + 1, "reduce_scatter": alone, "all_gather": alone}
    assert calls == {kind: number for kind, number in expected.items() if number}


def test_split_features_shrink_the_input_layer_to_a_block_diagonal() -> None:
    arm = TensorArm(name="t", world_size=4)
    plan, shape = planned(arm, width=64, features=32)
    whole = arm_parameters(arm, plan.model, shape, "whole")
    split = arm_parameters(arm, plan.model, shape, "split")
    assert whole - split == 32 * 64 - 32 * 64 // 4


@pytest.mark.parametrize(
    ("optimizer", "momentum", "copies"), [("adamw", 0.0, 2), ("sgd", 0.0, 0), ("sgd", 0.5, 1)]
)
def test_optimizer_state_is_counted_by_kind(optimizer: str, momentum: float, copies: int) -> None:
    plan, shape = planned(TensorArm(name="t", world_size=2), optimizer=optimizer, momentum=momentum)
    memory = arm_cost(plan, shape, "whole").memory
    assert memory.optimizer_bytes == copies * memory.weights_bytes


@pytest.mark.parametrize(
    ("update", "one_pass", "width", "bytes_per_weight"),
    [
        ("overlapped", True, 64, 12),
        ("after", True, 64, 16),
        ("after", True, 4_096, 12),
        ("overlapped", False, 64, 16),
        ("after", False, 4_096, 16),
    ],
)
def test_bfloat16_counts_float32_masters_with_moments_and_the_gradients_that_they_need(
    update: str, one_pass: bool, width: int, bytes_per_weight: int
) -> None:
    """Master and AdamW's moments, and a float32 gradient where one kernel doesn't take the bfloat16 one."""
    plan, shape = planned(
        TensorArm(name="t", world_size=2),
        optimizer="adamw",
        dtype="bfloat16",
        update=update,
        width=width,
        depth=40,
        bias=False,
    )
    cost = arm_cost(plan, shape, "whole", one_pass=one_pass)
    assert cost.memory.weights_bytes == 2 * cost.parameters_per_rank
    # At 4,096 the first and last layer are small all the same: under a thousandth of all weights.
    assert cost.memory.optimizer_bytes == pytest.approx(bytes_per_weight * cost.parameters_per_rank, rel=1e-3)


def count_update_state(update: str) -> list[tuple[str, int, int]]:
    """Runs on every rank: by arm, what `WeightUpdate` takes where it has kernels, and what the formulas say."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        # They are asked for when the state is made, and run on CUDA only.
        patch.setattr(optimizers, "_kernels", lambda _: ModuleType("update_kernels"))
        # Of 768 numbers a side local matrices are updated in one pass always, ghosts' and biases are small.
        for arm in [*every_arm(2, ghosts=8), *dtensor_arms(2)]:
            plan, shape = planned(arm, width=1_536, depth=3, dtype="bfloat16", update=update)
            ffn = build_ffn(plan, shape, "whole")
            with LiveMemory() as memory:
                torch.empty(0)
                before_bytes = memory.peak_bytes
                held = WeightUpdate(ffn, plan.training, torch.device("cpu"))
            # The rate, and AdamW's number of steps per weight, are no state that grows with weights.
            counters_bytes = held.rate.nbytes + 4 * sum(1 for _ in ffn.parameters())
            taken_bytes = memory.peak_bytes - before_bytes - counters_bytes
            found.append((arm.name, taken_bytes, arm_cost(plan, shape, "whole").memory.optimizer_bytes))
    return found


@pytest.mark.parametrize("update", ["overlapped", "after"])
def test_update_state_beside_one_pass_kernels_is_what_the_update_takes(update: str) -> None:
    """To the byte, in every layout: whether a weight is small is asked of each matrix and bias, not of layers."""
    for found in run_ranks(2, count_update_state, update):
        assert [(arm, taken) for arm, taken, _ in found] == [(arm, said) for arm, _, said in found]


def test_data_is_counted_with_its_placement_and_targets() -> None:
    regression = TaskShape(features=12, outputs=3, loss="mean_squared_error")
    classes = TaskShape(features=12, outputs=3, loss="cross_entropy")
    assert data_bytes(10, regression, "whole", 4) == 10 * 4 * (12 + 3)
    assert data_bytes(10, regression, "split", 4) == 10 * 4 * (3 + 3)
    assert data_bytes(10, classes, "whole", 4) == 10 * (4 * 12 + 8)


def test_notes_say_where_ghosts_stop_paying() -> None:
    def notes(p: int, k: int) -> str:
        plan, shape = planned(PhantomArm(name="p", world_size=p, ghosts=k), width=64)
        return " ".join(arm_cost(plan, shape, "whole").notes)

    assert "from k = 12" in notes(4, 12)
    assert "from k" not in notes(4, 11)
    assert "near p = 4," in notes(8, 4)
    assert notes(4, 4) == ""
    assert notes(1, 4) == ""


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all_gather", 3 * 10 * 2), ("reduce_scatter", 3 * 10 * 2), ("all_reduce", 2 * 3 * 10 * 2)],
)
def test_bytes_sent_follow_the_ring(kind: Any, sent: int) -> None:
    assert bytes_sent(kind, elements=40, element_bytes=2, world_size=4) == sent
    assert bytes_sent(kind, elements=40, element_bytes=2, world_size=1) == 0


def test_the_cost_model_loads_no_torch() -> None:
    code = "import sys, phantom_core.cost, phantom_core.checks; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
