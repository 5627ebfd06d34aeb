"""What every way of splitting a linear layer has in common.

LayoutError   a ValueError: a layer can't be split as asked, or can't live there, or was given an input that it
              can't take

z = x W^T + bias with W (out_features, in_features), split over p ranks. A layer says where its input and
output live: as this rank's `shard` (b, features / p), or as the `full` (b, features), equal on every rank.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from phantom_core.collectives import Communicator
from phantom_core.initialization import drawn_generator
from phantom_core.layouts.supported import device_problem, dtype_problem, found_device

Placement = Literal["shard", "full"]
"""Where an activation lives: a part on each rank, or all of it on every rank."""
Group = dist.ProcessGroup | Communicator | None
"""Who splits the layer. None is the default group, or one rank where torch.distributed is not initialised."""


class LayoutError(ValueError):
    """A layer can't do what it was asked to; the message names the argument, its value and the way out."""


class SplitLinear(nn.Module, ABC):
    """A linear layer split over the ranks of a group.

    The gradients are those of the whole layer if every rank's loss is the same function of all outputs:
    compute the loss from full outputs alike on every rank, or from each rank's own shard and let the losses
    add up.

    Ranks check that they build the same layer, and at its first input that its shape and number format are the same
    on all of them: one small all-gather each. Later inputs of another shape are the caller's to keep alike;
    TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch check every collective's. Where a CUDA graph is captured or
    torch.compile traces nothing is checked: run a first step without.

    A layer computes in its weights' number format: under torch.autocast it takes inputs of any floating-point format,
    converts them, and returns its own, as torch.amp.custom_fwd(cast_inputs=...) does.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        group: The ranks: a process group, None, or a `Communicator` that layers share. Inside its `agreed` ranks
            don't check anything.
        device: Where the weights live: the CPU, a CUDA device, or `meta` for later.
        dtype: Their number format: float32, float64 or bfloat16.
        settings: What else the ranks must agree on.

    Raises:
        LayoutError: A size can't be split so, or the layer can't live there or be of that number format.
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
        self._dtype = torch.get_default_dtype() if dtype is None else dtype
        self._asks = False
        where = found_device(device)
        problem = device_problem(where)
        # Before any check that could end one rank's constructor and leave the others waiting for it.
        self.communicator.agree(
            f"a {type(self).__name__}",
            where if isinstance(where, torch.device) else None,
            **self._sizes,
            dtype=self._dtype,
            device=getattr(where, "type", where) if problem is None else f"none that it can use ({problem})",
        )
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if value < 1:
                raise LayoutError(f"{name} = {value}; a layer needs at least 1")
        problem = problem or dtype_problem(self._dtype)
        if problem is not None or isinstance(where, str):
            raise LayoutError(problem)
        self._device = where
        if not self.communicator.has_agreed:
            self.ask_at_next_input()

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
            LayoutError: The last dimension or the number format is not what the layer was built for.
            RanksDisagreeError: The first input is not of one shape and number format on all ranks.
        """
        if self._asks and not torch.compiler.is_compiling():
            self._agree_on(x)
        device_type = "cuda" if x.is_cuda else "cpu"
        if torch.is_autocast_enabled(device_type):
            with torch.autocast(device_type, enabled=False):
                return self.forward(x.to(self._weights_dtype) if x.is_floating_point() else x)
        own = self.in_features if self.input_placement == "full" else self.in_features // self.world_size
        if x.shape[-1:] != (own,):
            raise LayoutError(
                f"the input's shape is {tuple(x.shape)}; {self!r} takes {own} numbers in the last dimension"
            )
        if x.dtype != self._weights_dtype:
            raise LayoutError(
                f"the input is {x.dtype}, but the weights of {self!r} are {self._weights_dtype}; give it "
                f"x.to({self._weights_dtype}), or convert the layer"
            )
        if x.dim() == 2:
            return self._transform(x)
        z = self._transform(x.reshape(-1, own))
        return z.reshape(*x.shape[:-1], z.shape[1])

    def ask_at_next_input(self) -> None:
        """Makes the ranks agree on their next input's shape and number format; every rank must call it."""
        self._asks = self.world_size > 1

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
        shown = {**self._sizes, "world_size": self.world_size}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @property
    def _sizes(self) -> dict[str, int | str]:
        return {"in_features": self.in_features, "out_features": self.out_features, **self._settings}

    @property
    def _weights_dtype(self) -> torch.dtype:
        """As they are now: the layer may have been converted."""
        for parameter in self._parameters.values():  # a tenth of what `parameters` takes
            if parameter is not None:
                return parameter.dtype
        return next(self.parameters()).dtype

    def _agree_on(self, x: torch.Tensor) -> None:
        if x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self.communicator.agree(
            f"the first input of a {type(self).__name__}",
            x.device,
            **self._sizes,
            shape=tuple(x.shape),
            input_dtype=x.dtype,
            weights_dtype=self._weights_dtype,
        )
        self._asks = False

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


def backward_of(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an autograd function's backward: in its tensors' number format, differentiable once.

    A backward pass may be made under torch.autocast, which would convert what products take and leave as it is what
    they are added to.
    """

    @functools.wraps(backward)
    def in_own_dtype(ctx: Any, delta: torch.Tensor) -> Any:
        device_type = "cuda" if delta.is_cuda else "cpu"
        if not torch.is_autocast_enabled(device_type):
            return backward(ctx, delta)
        with torch.autocast(device_type, enabled=False):
            return backward(ctx, delta)

    return once_differentiable(in_own_dtype)
