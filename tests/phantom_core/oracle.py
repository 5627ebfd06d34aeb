"""The dense network that a split one must equal, assembled in one process from what the ranks hold.

Nothing of the layouts' own code computes here: weights are put together by autograd-traced block operations
as the mathematics document writes them, and torch's own autograd and optimizers do the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from phantom_core.layouts import SplitLinear

Tensors = dict[str, torch.Tensor]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
    "identity": lambda z: z,
}


@dataclass(frozen=True)
class LayerRecord:
    """What one rank tells of one layer."""

    kind: str
    parameters: Tensors
    replicated: frozenset[str]
    sources: tuple[int, ...] = ()

    @classmethod
    def of(cls, layer: SplitLinear) -> "LayerRecord":
        parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
        return cls(type(layer).__name__, parameters, layer.replicated, tuple(getattr(layer, "sources", ())))


@dataclass
class DenseLayer:
    """One layer's leaves, rank by rank, and the dense weight and bias that they stand for."""

    records: list[LayerRecord]
    leaves: list[Tensors] = field(init=False)

    def __post_init__(self) -> None:
        first = self.records[0]
        shared = {
            name: first.parameters[name].clone().requires_grad_()
            for name in first.replicated & set(first.parameters)
        }
        self.leaves = [
            {
                name: shared.get(name, value.clone().requires_grad_())
                for name, value in record.parameters.items()
            }
            for record in self.records
        ]

    def weight(self) -> torch.Tensor:
        leaves, kind = self.leaves, self.records[0].kind
        if kind in ("DenseLinear", "TensorGatherLinear", "TensorColumnLinear"):
            return torch.cat([leaf["weight"] for leaf in leaves], 0)
        if kind == "TensorRowLinear":
            return torch.cat([leaf["weight"] for leaf in leaves], 1)
        if kind == "LowRankLinear":
            outer = torch.cat([leaf["outer"] for leaf in leaves], 0)
            return outer @ torch.cat([leaf["inner"] for leaf in leaves], 1)
        p = range(len(leaves))
        if kind == "BlockDiagonalLinear":
            zero = torch.zeros_like(leaves[0]["local"])
            return torch.cat([torch.cat([leaves[j]["local"] if i == j else zero for i in p], 1) for j in p])
        assert kind == "PhantomLinear"
        return torch.cat([torch.cat([self._block(j, i) for i in p], 1) for j in p])

    def _block(self, j: int, i: int) -> torch.Tensor:
        """L_j on the diagonal, D_ji C_i off it."""
        if i == j:
            return self.leaves[j]["local"]
        compressor = self.leaves[i]["compressor"]
        k, at = compressor.shape[0], self.records[j].sources.index(i)
        return self.leaves[j]["decompressors"][:, at * k : (at + 1) * k] @ compressor

    def bias(self) -> torch.Tensor | None:
        if "bias" not in self.leaves[0]:
            return None
        if "bias" in self.records[0].replicated:
            return self.leaves[0]["bias"]
        return torch.cat([leaf["bias"] for leaf in self.leaves])


@dataclass
class DenseNetwork:
    """All layers of one network."""

    layers: list[DenseLayer]
    activation: str

    @classmethod
    def of(cls, ranks: list[list[LayerRecord]], activation: str) -> "DenseNetwork":
        return cls([DenseLayer(list(records)) for records in zip(*ranks, strict=True)], activation)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = x if index == 0 else ACTIVATIONS[self.activation](x)
            x = torch.nn.functional.linear(x, layer.weight(), layer.bias())
        return x

    def leaves(self) -> list[torch.Tensor]:
        """Every leaf once, those that ranks share included."""
        every = [value for layer in self.layers for leaf in layer.leaves for value in leaf.values()]
        return list({id(value): value for value in every}.values())

    def of_rank(self, rank: int) -> list[Tensors]:
        """The leaves of one rank, layer by layer."""
        return [layer.leaves[rank] for layer in self.layers]
