"""Networks are built alike from the same seed, and differently from another; ranks are held to one plan."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator, RanksDisagreeError
from phantom_core.ffn import FFN, build_ffn
from phantom_core.layouts import LayoutError, TensorColumnLinear, TensorRowLinear
from phantom_core.spec import PhantomArm, TensorArm
from tests.distributed import run_ranks
from tests.phantom_core.arms import every_arm, planned


def build(arm: Any, seed: int = 0, group: Any = None, **changes: Any) -> FFN:
    plan, shape = planned(arm, **changes)
    return build_ffn(plan, shape, "whole", group, seed=seed)


def state(ffn: FFN) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in ffn.state_dict().items()}


def on_two_ranks() -> None:
    for arm in every_arm(2):
        check_determined_by_seed_and_rank(arm)
        check_same_outputs_everywhere(arm)
        check_copy_trains_apart(arm)
    check_disagreement()
    check_world_size()


def check_determined_by_seed_and_rank(arm: Any) -> None:
    torch.manual_seed(1 + dist.get_rank())
    before = torch.get_rng_state()
    first = state(build(arm, seed=5))
    assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
    torch.rand(3)
    again, other = state(build(arm, seed=5)), state(build(arm, seed=6))
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
        if not name.endswith("bias"):
            assert not torch.equal(value, other[name]), name
    ffn = build(arm, seed=5)
    for layer in ffn.layers:
        for name, parameter in layer.named_parameters():
            mine, theirs = layer.communicator.from_all_ranks(parameter)
            assert torch.equal(mine, theirs) == (name == "bias")
    drawn = [value.flatten()[:8] for name, value in first.items() if not name.endswith("bias")]
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn), "two layers drew the same numbers"


def check_same_outputs_everywhere(arm: Any) -> None:
    ffn = build(arm, dtype="float32")
    outputs = ffn(torch.randn(6, 24, generator=torch.Generator().manual_seed(2)))
    assert outputs.shape == (6, 3)
    mine, theirs = ffn.communicator.from_all_ranks(outputs)
    assert torch.equal(mine, theirs)


def check_copy_trains_apart(arm: Any) -> None:
    ffn = build(arm)
    before = state(ffn)
    copied = copy.deepcopy(ffn)
    torch.autograd.backward(copied(torch.ones(2, 24)).sum())
    torch.optim.SGD(copied.parameters(), lr=1).step()
    assert all(torch.equal(value, before[name]) for name, value in ffn.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in copied.state_dict().items())


def check_disagreement() -> None:
    rank = dist.get_rank()
    for different, told in (
        ({"width": 12 * (1 + rank)}, "model.width = 12 on rank 0, 24 on rank 1"),
        ({"depth": 1 + rank}, "model.depth = 1 on rank 0, 2 on rank 1"),
        ({"seed": rank}, "seed = 0 on rank 0, 1 on rank 1"),
        ({"features": 24 + 2 * rank}, "task.features = 24 on rank 0, 26 on rank 1"),
    ):
        with pytest.raises(RanksDisagreeError, match=f"ranks disagree on a network: {told}; give"):
            build(TensorArm(name="t", world_size=2), **different)


def check_world_size() -> None:
    with pytest.raises(ValueError, match="world_size = 4 of arm 'p', but its group has 2 ranks"):
        build(PhantomArm(name="p", world_size=4, ghosts=1))
    with pytest.raises(LayoutError, match="out_features = 13 can't be split over 2 ranks; use 12 or 14"):
        build(TensorArm(name="t", world_size=2), width=13)


def test_networks_on_two_ranks_are_what_seed_and_plan_say() -> None:
    run_ranks(2, on_two_ranks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_weights_and_outputs_are_in_the_model_s_number_format(dtype: Any) -> None:
    ffn = build(TensorArm(name="t"), dtype=dtype)
    wanted = getattr(torch, dtype)
    assert {parameter.dtype for parameter in ffn.parameters()} == {wanted}
    assert ffn(torch.ones(2, 24, dtype=wanted)).dtype == wanted


@pytest.mark.parametrize("arm", every_arm(1), ids=lambda arm: arm.name)
def test_a_network_without_bias_has_only_matrices(arm: Any) -> None:
    assert all(parameter.dim() == 2 for parameter in build(arm, bias=False).parameters())


def test_layers_that_do_not_fit_each_other_are_no_network() -> None:
    alone = Communicator()
    column, row = TensorColumnLinear(4, 4, group=alone), TensorRowLinear(4, 4, group=alone)
    with pytest.raises(AssertionError, match="can't read what the one before returns"):
        FFN(column, [column], row, "relu")
    with pytest.raises(AssertionError, match="every rank needs all outputs"):
        FFN(column, [row], column, "relu")


def train_in_bfloat16() -> list[float]:
    losses = []
    for arm in every_arm(2):
        ffn = build(arm, dtype="bfloat16", depth=3, width=64)
        optimizer = torch.optim.SGD(ffn.parameters(), lr=0.03)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(32, 24, generator=generator).bfloat16()
        y = torch.randn(32, 3, generator=generator).bfloat16()
        first = last = 0.0
        for step in range(60):
            loss = torch.nn.functional.mse_loss(ffn(x).float(), y.float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            last = float(loss.detach())
            first = last if step == 0 else first
        losses.append(last / first)
    return losses


def test_every_layout_learns_in_bfloat16() -> None:
    for losses in run_ranks(2, train_in_bfloat16):
        assert all(share < 0.5 for share in losses), losses
