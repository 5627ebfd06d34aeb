"""Split networks equal the dense network that their weights stand for: outputs, gradients, training.

Float64 on gloo processes for p = 1 ... 4, every number of ghosts, every layout, activation and depth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.ffn import build_ffn
from phantom_core.spec import Activation, Arm, FeaturePlacement, LowRankArm, PhantomArm
from tests.distributed import run_ranks
from tests.phantom_core.arms import every_arm, planned
from tests.phantom_core.oracle import DenseNetwork, LayerRecord, Tensors

WIDTH, FEATURES, OUTPUTS, BATCH, STEPS = 12, 24, 3, 5, 20
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    """One network and how it is trained."""

    arm: Arm
    activation: Activation = "relu"
    depth: int = 2
    bias: bool = True
    placement: FeaturePlacement = "whole"
    optimizer: str = "sgd"
    loss: str = "mean_squared_error"
    steps: int = STEPS


@dataclass(frozen=True)
class Trace:
    """What one rank saw of one case."""

    start: list[LayerRecord]
    outputs: torch.Tensor
    gradients: list[Tensors]
    after_1: list[LayerRecord]
    after_all: list[LayerRecord]
    dense_weights: list[torch.Tensor]
    dense_biases: list[torch.Tensor | None]


def cases(p: int) -> list[Case]:
    """Every arm under varied conditions, and every k and every kind of rank under one."""
    conditions: list[dict[str, Any]] = [
        {"activation": "relu", "depth": 2},
        {"activation": "gelu", "depth": 3, "bias": False, "placement": "split", "optimizer": "adamw"},
        {"activation": "tanh", "depth": 1, "placement": "split", "loss": "cross_entropy"},
        {"activation": "identity", "depth": 3, "optimizer": "adamw", "loss": "cross_entropy"},
    ]
    # On more ranks than cores twenty steps take seconds; half of the conditions are enough there for each
    # arm.
    varied = [
        Case(arm, steps=STEPS if p < 3 or (row + column) % 2 else 1, **condition)
        for row, arm in enumerate(every_arm(p))
        for column, condition in enumerate(conditions)
    ]
    # Ghosts change nothing on one rank.
    every_k = [Case(PhantomArm(name="p", world_size=p, ghosts=k)) for k in range(1, WIDTH // p) if p > 1]
    ranks = [Case(LowRankArm(name="l", world_size=p, rank=r), depth=1) for r in (1, WIDTH)]
    return [*varied, *every_k, *ranks]


def data(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and targets, the same on every rank and for the reference."""
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=generator)
    if case.loss == "cross_entropy":
        return features, torch.randint(OUTPUTS, (BATCH,), generator=generator)
    return features, torch.randn(BATCH, OUTPUTS, dtype=torch.float64, generator=generator)


def loss_of(case: Case, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if case.loss == "cross_entropy":
        return torch.nn.functional.cross_entropy(outputs, targets)
    return torch.nn.functional.mse_loss(outputs, targets)


def optimizer_of(case: Case, parameters: Any) -> torch.optim.Optimizer:
    if case.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.01)


def trace_all(p: int) -> list[Trace]:
    """Runs on every rank."""
    return [trace(case, p) for case in cases(p)]


def trace(case: Case, p: int) -> Trace:
    plan, shape = planned(
        case.arm, dtype="float64", activation=case.activation, depth=case.depth, bias=case.bias, width=WIDTH
    )
    ffn = build_ffn(plan, shape, case.placement, seed=3)
    with torch.no_grad():  # biases start at 0, where nothing could go wrong with them
        for layer in ffn.layers:
            if layer.bias is not None:
                shared = "bias" in layer.replicated
                seed = torch.Generator().manual_seed(11 if shared else 12 + layer.rank)
                layer.bias.normal_(generator=seed)
    features, targets = data(case)
    if case.placement == "split":
        features = features.chunk(p, 1)[dist.get_rank()].clone()
    start = [LayerRecord.of(layer) for layer in ffn.layers]
    weights = [layer.dense_equivalent() for layer in ffn.layers]
    biases = [layer.dense_bias() for layer in ffn.layers]
    optimizer = optimizer_of(case, ffn.parameters())
    for step in range(case.steps):
        outputs = ffn(features)
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(case, outputs, targets))
        if step == 0:
            first_outputs = outputs.detach()
            gradients = [gradients_of(layer) for layer in ffn.layers]
        optimizer.step()
        if step == 0:
            after_1 = [LayerRecord.of(layer) for layer in ffn.layers]
    after_all = [LayerRecord.of(layer) for layer in ffn.layers]
    return Trace(start, first_outputs, gradients, after_1, after_all, weights, biases)


def gradients_of(layer: torch.nn.Module) -> Tensors:
    return {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Traced:
    """A case with every rank's trace."""

    case: Case
    ranks: list[Trace]

    def reference(self) -> DenseNetwork:
        network = DenseNetwork.of([trace.start for trace in self.ranks], self.case.activation)
        if self.case.placement == "split":
            assert network.layers[0].records[0].kind == "BlockDiagonalLinear"
        return network


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small run several times slower on two threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def traced(request: pytest.FixtureRequest) -> list[Traced]:
    p: int = request.param
    ranks = run_ranks(p, trace_all, p)
    return [Traced(case, [rank[index] for rank in ranks]) for index, case in enumerate(cases(p))]


def close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    torch.testing.assert_close(
        actual, expected.detach(), rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{what}: {text}"
    )


def test_outputs_equal_the_dense_network_on_every_rank(traced: list[Traced]) -> None:
    for item in traced:
        expected = item.reference()(data(item.case)[0])
        for rank, trace in enumerate(item.ranks):
            close(trace.outputs, expected, (item.case, rank))


def test_every_gradient_equals_autograd_on_the_dense_network(traced: list[Traced]) -> None:
    for item in traced:
        reference = item.reference()
        features, targets = data(item.case)
        torch.autograd.backward(loss_of(item.case, reference(features), targets))
        for rank, trace in enumerate(item.ranks):
            for layer, leaves in enumerate(reference.of_rank(rank)):
                assert trace.gradients[layer].keys() == leaves.keys(), "a parameter has no gradient"
                for name, leaf in leaves.items():
                    assert leaf.grad is not None
                    close(trace.gradients[layer][name], leaf.grad, (item.case, rank, layer, name))


def test_parameters_agree_with_the_dense_network_after_one_step_and_twenty(traced: list[Traced]) -> None:
    for item in traced:
        reference = item.reference()
        features, targets = data(item.case)
        optimizer = optimizer_of(item.case, reference.leaves())
        for step in range(1, item.case.steps + 1):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(item.case, reference(features), targets))
            optimizer.step()
            if step in (1, item.case.steps):
                for rank, trace in enumerate(item.ranks):
                    records = trace.after_1 if step == 1 else trace.after_all
                    for layer, leaves in enumerate(reference.of_rank(rank)):
                        for name, leaf in leaves.items():
                            what = (item.case, step, rank, layer, name)
                            close(records[layer].parameters[name], leaf, what)


def test_replicated_parameters_stay_equal_to_the_bit(traced: list[Traced]) -> None:
    shared = 0
    for item in traced:
        for layer, record in enumerate(item.ranks[0].after_all):
            for name in record.replicated & record.parameters.keys():
                for trace in item.ranks[1:]:
                    shared += 1
                    assert torch.equal(trace.after_all[layer].parameters[name], record.parameters[name])
    assert shared or len(traced[0].ranks) == 1


def test_dense_equivalents_are_the_assembled_weights_on_every_rank(traced: list[Traced]) -> None:
    for item in traced:
        for layer, dense in enumerate(item.reference().layers):
            bias = dense.bias()
            for trace in item.ranks:
                close(trace.dense_weights[layer], dense.weight(), (item.case, layer))
                told = trace.dense_biases[layer]
                assert (told is None) == (bias is None)
                if told is not None and bias is not None:
                    close(told, bias, (item.case, layer))


def test_every_rank_reads_the_ghosts_of_every_other_rank_once(traced: list[Traced]) -> None:
    for item in traced:
        for rank, trace in enumerate(item.ranks):
            for record in trace.start:
                if record.kind == "PhantomLinear":
                    assert sorted(record.sources) == [i for i in range(len(item.ranks)) if i != rank]
