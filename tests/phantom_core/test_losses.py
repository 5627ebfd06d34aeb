"""The gradient of the loss is autograd's of the loss to the bit, and the loss that comes with it the same."""

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom_core.task_shapes import TaskShape
from phantom_core.training.losses import loss_dtype, loss_gradient, loss_of


@settings(max_examples=60, deadline=None)
@given(
    loss=st.sampled_from(["mean_squared_error", "cross_entropy"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    rows=st.integers(1, 40),
    outputs=st.integers(2, 17),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    feature_major=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_what_autograd_makes_of_the_loss(
    loss: Literal["mean_squared_error", "cross_entropy"],
    dtype: torch.dtype,
    rows: int,
    outputs: int,
    scale: float,
    feature_major: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = TaskShape(features=1, outputs=outputs, loss=loss)
    made = scale * torch.randn(rows, outputs, generator=generator, dtype=torch.float64)
    leaf = made.to(dtype).requires_grad_()
    if loss == "cross_entropy":
        targets = torch.randint(outputs, (rows,), generator=generator)
    else:
        targets = torch.randn(rows, outputs, generator=generator, dtype=torch.float64).to(loss_dtype(dtype))
    # As a layer's result that is kept feature-major, and one that is not.
    given_outputs = (leaf.t().contiguous().t() if feature_major else leaf) * 1

    gradient, make_loss = loss_gradient(shape, given_outputs, targets)
    told = make_loss()
    expected = loss_of(shape, given_outputs, targets)
    (right,) = torch.autograd.grad(expected, given_outputs, retain_graph=True)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, right)
    assert not told.requires_grad
    assert told.dtype == expected.dtype
    assert torch.equal(told, expected.detach())
    torch.autograd.backward(given_outputs, gradient)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, right)


@pytest.mark.parametrize("loss", ["mean_squared_error", "cross_entropy"])
def test_the_outputs_are_left_as_they_are(loss: Literal["mean_squared_error", "cross_entropy"]) -> None:
    shape = TaskShape(features=1, outputs=3, loss=loss)
    outputs = torch.randn(4, 3, requires_grad=True) * 1
    before = outputs.detach().clone()
    targets = torch.zeros(4, dtype=torch.int64) if loss == "cross_entropy" else torch.zeros(4, 3)
    with torch.no_grad():
        loss_gradient(shape, outputs, targets)
    assert torch.equal(outputs, before)
    assert outputs.grad_fn is not None
