"""No exchange at all: phantom parallelism without ghosts, the control that says what the ghosts are worth."""

import torch

from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, SplitLinear
from phantom_core.layouts.local_linear import local_linear


class BlockDiagonalLinear(SplitLinear):
    """z_j = x_j L_j^T + bias_j: rank j's outputs see rank j's inputs only.

                 | L_0         |
        W_eq  =  |     L_1     |     L_j (n_out/p, n/p)
                 |         ... |

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        bias: Whether to add a bias.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: A size is not divisible by the number of ranks.
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
        own_out = self._shard("out_features", out_features)
        self.local = self._weight(own_out, self._shard("in_features", in_features))
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        return local_linear(x, self.local, self.bias, self.communicator)

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var L = gain^2 p / n: p times the dense variance, since a neuron has n/p inputs only."""
        fill_normal(self.local, gain**2 / self.local.shape[1], self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W_eq (n_out, n) with every rank's L on the diagonal, detached."""
        blocks = self.communicator.from_all_ranks(self.local)
        whole = blocks[0].new_zeros(self.out_features, self.in_features)
        rows, columns = self.local.shape
        for j, block in enumerate(blocks):
            whole[j * rows : (j + 1) * rows, j * columns : (j + 1) * columns] = block
        return whole
