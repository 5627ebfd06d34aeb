"""Tensor layers that make their products in parts compute what undivided ones do."""

import pytest
import torch
import torch.distributed as dist

import phantom_core.layouts.tensor_exchange as tensor_exchange
from phantom_core.collectives import Communicator
from phantom_core.layouts import SplitLinear, TensorGatherLinear, TensorRowLinear
from tests.distributed import run_ranks

ROWS = 7


class Splitting(Communicator):
    splits_products = True


def outputs_and_gradients(
    ranks: Communicator, kind: str, bias: bool
) -> tuple[list[torch.Tensor], dict[str, int]]:
    torch.manual_seed(0)
    layer: SplitLinear
    if kind == "gather":
        layer = TensorGatherLinear(12, 24, bias, ranks, dtype=torch.float64)
    else:
        layer = TensorRowLinear(12, 24, bias, ranks, dtype=torch.float64)
    if layer.bias is not None:
        torch.nn.init.ones_(layer.bias)
    own = 12 // ranks.world_size
    x = torch.randn(ROWS, own, dtype=torch.float64, generator=torch.Generator().manual_seed(dist.get_rank()))
    x.requires_grad_()
    with ranks.counting() as traffic:
        z = layer(x)
    torch.autograd.backward(z.sin().sum())
    gradients = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    calls: dict[str, int] = {str(kind): count for kind, count in traffic.calls.items()}
    return [z.detach(), *(each for each in gradients if each is not None)], calls


def both_ways() -> list[tuple[str, list[torch.Tensor], list[torch.Tensor], dict[str, int], dict[str, int]]]:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_exchange, "LEAST_PART", 1)
        for kind in ("gather", "row"):
            for bias in (False, True):
                parts, calls = outputs_and_gradients(Splitting(), kind, bias)
                whole, one_call = outputs_and_gradients(Communicator(), kind, bias)
                found.append((f"{kind}, bias {bias}", parts, whole, calls, one_call))
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_products_in_parts_are_the_undivided_ones(p: int) -> None:
    for rank in run_ranks(p, both_ways):
        for name, parts, whole, calls, one_call in rank:
            assert len(parts) == len(whole) >= 3
            for one, other in zip(parts, whole, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
            if name.startswith("row"):
                assert (calls, one_call) == ({"all_reduce": 2}, {"all_reduce": 1})
            else:
                assert calls == one_call == {"all_gather": 1}
