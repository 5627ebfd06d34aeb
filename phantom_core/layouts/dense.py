"""The unsplit layer, on one rank."""

import torch

from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, LayoutError, SplitLinear
from phantom_core.layouts.local_linear import local_linear


class DenseLinear(SplitLinear):
    """z = x W^T + bias on one rank: x (b, n), W (n_out, n).

    Args:
        in_features: Inputs, n.
        out_features: Outputs.
        bias: Whether to add a bias.
        group: One rank, or None.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: The group has more than one rank.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, bias=bias)
        if self.world_size != 1:
            raise LayoutError(
                f"a dense layer is not split, but the group has {self.world_size} ranks; use a split layout"
            )
        self.weight = self._weight(out_features, in_features)
        self.bias = self._bias(bias, out_features)
        self.reset_parameters()

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        return local_linear(x, self.weight, self.bias, self.communicator)

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n, He's scheme as it is."""
        fill_normal(self.weight, gain**2 / self.in_features, self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W itself (n_out, n), detached."""
        return self.weight.detach().clone()
