"""What every way of splitting a linear layer has in common.

LayoutError   a ValueError: a layer can't be split as asked, or was given an input of another size

z = x W^T + bias with W (out_features, in_features), split over p ranks. A layer says where its input and
output live: as this rank's `shard` (b, features / p), or as the `full` (b, features), equal on every rank.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from phantom_core.collectives import Communicator
from phantom_core.initialization import drawn_generator

Placement = Literal["shard", "full"]
"""Where an activation lives: a part on each rank, or all of it on every rank."""
Group = dist.ProcessGroup | Communicator | None
"""Who splits the layer. None is the default group, or one rank where torch.distributed is not initialised."""


class LayoutError(ValueError):
    """A layer can't be split as asked; the message names the argument, its value and the way out."""


class SplitLinear(nn.Module, ABC):
    """A linear layer split over the ranks of a group.

    The gradients are those of the whole layer if every rank's loss is the same function of all outputs:
    compute the loss from full outputs alike on every rank, or from each rank's own shard and let the losses
    add up.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        group: The ranks. A `Communicator` is taken as it is (whoever made it has checked that ranks agree);
            for a process group or None the ranks check that they build the same layer: one small
            all-gather.
        device: Where the weights live.
        dtype: Their number format.
        settings: What else the ranks must agree on.

    Raises:
        LayoutError: A size can't be split so.
        RanksDisagreeError: Ranks were given different arguments.
    """

    input_placement: Placement = "shard"
    """Whether the layer wants its input as this rank's shard or in full."""
    output_placement: Placement = "shard"
    """Whether it returns this rank's shard or the full output."""
    replicated: frozenset[str] = frozenset()
    """Names of parameters that every rank holds alike, with equal gradients; all others are its own part."""
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Group,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        **settings: int | str,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.communicator = group if isinstance(group, Communicator) else Communicator(group)
        self._settings = settings
        self._device = torch.get_default_device() if device is None else torch.device(device)
        self._dtype = torch.get_default_dtype() if dtype is None else dtype
        # Before any check that could end one rank's constructor and leave the others waiting for it.
        if not isinstance(group, Communicator):
            self.communicator.agree(f"{self!r} in {self._dtype}", self._device)
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if value < 1:
                raise LayoutError(f"{name} = {value}; a layer needs at least 1")
        if not self._dtype.is_floating_point:
            raise LayoutError(f"dtype = {self._dtype}; weights need a floating-point format")

    @property
    def world_size(self) -> int:
        """Ranks that split the layer, p."""
        return self.communicator.world_size

    @property
    def rank(self) -> int:
        """This rank's place among them, j."""
        return self.communicator.rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer.

        Args:
            x: This rank's (..., n / p), or (..., n) where `input_placement` is `full`; every rank's leading
                dimensions must be the same.

        Returns:
            This rank's (..., n_out / p), or (..., n_out) where `output_placement` is `full`.

        Raises:
            LayoutError: The last dimension is not what the layer was built for.
        """
        own = self.in_features if self.input_placement == "full" else self.in_features // self.world_size
        if x.shape[-1:] != (own,):
            raise LayoutError(
                f"the input's shape is {tuple(x.shape)}; {self!r} takes {own} numbers in the last dimension"
            )
        if x.dim() == 2:
            return self._transform(x)
        z = self._transform(x.reshape(-1, own))
        return z.reshape(*x.shape[:-1], z.shape[1])

    @abstractmethod
    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        """As `forward`, for x (b, features)."""

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Draws new weights with Var z = gain^2 E[x^2], and sets the bias to 0.

        Args:
            generator: Source of the numbers, on the weights' device; must differ from rank to rank. None
                seeds one from torch's global generator and the rank.
            gain: That of the activation which made the input (`initialization.gain_of`).
        """

    @abstractmethod
    def dense_equivalent(self) -> torch.Tensor:
        """The whole weight (out_features, in_features) on every rank, detached; every rank must call it."""

    def dense_bias(self) -> torch.Tensor | None:
        """The whole bias (out_features,) on every rank, detached; every rank must call it."""
        if self.bias is None:
            return None
        if "bias" in self.replicated:
            return self.bias.detach().clone()
        return torch.cat(self.communicator.from_all_ranks(self.bias))

    def extra_repr(self) -> str:
        """Sizes and settings, for people; the same on every rank."""
        sizes = {"in_features": self.in_features, "out_features": self.out_features}
        shown = {**sizes, **self._settings, "world_size": self.world_size}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def _shard(self, name: str, features: int) -> int:
        p = self.world_size
        if features % p:
            below, above = features // p * p, (features // p + 1) * p
            nearest = f"{below} or {above}" if below else f"{above}"
            raise LayoutError(f"{name} = {features} can't be split over {p} ranks; use {nearest}")
        return features // p

    def _weight(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, device=self._device, dtype=self._dtype))

    def _bias(self, wanted: bool, size: int) -> nn.Parameter | None:
        return self._weight(size) if wanted else None

    def _generator(self, generator: torch.Generator | None) -> torch.Generator | None:
        where = next(self.parameters()).device  # not as constructed: the layer may have moved since
        return drawn_generator(self.rank, where) if generator is None else generator

    def _zero_bias(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def apply_function(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    """Calls an autograd function, whose `apply` torch leaves untyped."""
    z: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return z
