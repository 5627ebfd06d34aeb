"""At the start every layer's z has the variance of a dense layer's z, in every layout, over depth."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.ffn import build_ffn
from phantom_core.initialization import GELU_GAIN, gain_of, weights_generator
from phantom_core.spec import DenseArm
from tests.distributed import run_ranks
from tests.phantom_core.arms import every_arm, planned

WIDTH, DEPTH, SEEDS, BATCH = 512, 6, 3, 128
ACTIVATIONS = ("relu", "gelu", "tanh", "identity")


def note(seen: list[float], module: object, inputs: object, z: torch.Tensor) -> None:
    seen.append(float(z.detach().square().mean()))


def layer_variances(arm: Any, activation: str, placement: Any) -> list[float]:
    """E[z^2] of every layer over all ranks, rows and seeds, input layer first."""
    plan, shape = planned(arm, width=WIDTH, depth=DEPTH, features=96, activation=activation, dtype="float32")
    squares = torch.zeros(DEPTH + 2)
    for seed in range(SEEDS):
        ffn = build_ffn(plan, shape, placement, seed=seed)
        seen: list[float] = []
        for layer in ffn.layers:
            layer.register_forward_hook(partial(note, seen))
        features = torch.randn(BATCH, 96, generator=torch.Generator().manual_seed(seed))
        if placement == "split" and dist.is_initialized():
            features = features.chunk(dist.get_world_size(), 1)[dist.get_rank()]
        with torch.no_grad():
            ffn(features)
        squares += torch.tensor(seen)
    if dist.is_initialized():
        dist.all_reduce(squares)
        squares /= dist.get_world_size()
    return (squares / SEEDS).tolist()


def all_variances(p: int) -> dict[str, list[float]]:
    """Runs on every rank: every layout with ReLU, and every activation with the phantom layout."""
    arms = {arm.name: arm for arm in every_arm(p, ghosts=16, rank=64)}
    result = {f"{name} relu": layer_variances(arm, "relu", "split") for name, arm in arms.items()}
    others = {f"phantom {name}": layer_variances(arms["phantom"], name, "whole") for name in ACTIVATIONS[1:]}
    return result | others


@pytest.fixture(scope="module")
def dense() -> dict[str, list[float]]:
    return {
        activation: layer_variances(DenseArm(name="d"), activation, "whole") for activation in ACTIVATIONS
    }


@pytest.mark.parametrize("p", [2, 4])
def test_every_layout_begins_with_the_dense_network_s_variances(
    dense: dict[str, list[float]], p: int
) -> None:
    """A factor wrong by 10 % per layer would be wrong by half after six layers."""
    for name, variances in run_ranks(p, all_variances, p)[0].items():
        expected = dense[name.split()[1]]
        for layer, (variance, wanted) in enumerate(zip(variances[:-1], expected[:-1], strict=True)):
            assert 0.7 < variance / wanted < 1.4, (name, layer, variances, expected)


@pytest.mark.parametrize("activation", ["relu", "gelu", "identity"])
def test_the_dense_network_keeps_unit_variance_over_depth(
    dense: dict[str, list[float]], activation: str
) -> None:
    for variance in dense[activation][:-1]:
        assert 0.75 < variance < 1.35, dense[activation]


def test_the_gain_of_gelu_is_that_of_a_standard_normal_input() -> None:
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    second_moment = torch.trapezoid(torch.nn.functional.gelu(z).square() * density, z)
    assert abs(GELU_GAIN**2 * float(second_moment) - 1) < 1e-9


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_other_gains_are_torch_s(activation: Any) -> None:
    assert gain_of(activation) == torch.nn.init.calculate_gain(activation)


def test_generators_differ_by_seed_layer_and_rank() -> None:
    def first(seed: int, layer: int, rank: int) -> float:
        generator = weights_generator(seed, layer, rank, torch.device("cpu"))
        return float(torch.rand(1, generator=generator))

    assert len({first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1)}) == 4
    assert first(3, 2, 1) == first(3, 2, 1)
    assert weights_generator(0, 0, 0, torch.device("meta")) is None
