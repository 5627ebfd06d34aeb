"""The model: input layer, L hidden layers in a layout, output layer, an activation after all but the last.

Features (b, F), or this rank's part (b, F/p), go in; the outputs (b, O) come out equal on every rank, so
every rank computes the same loss and the gradient of the whole model needs no further collective. Between
layers an activation is this rank's shard (b, n/p), except inside a column/row pair, where it is full (b,
n).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import nn
from torch.utils.checkpoint import checkpoint

from phantom_core.collectives import Communicator, Traffic
from phantom_core.cost import LAYERS_PER_CHECKPOINT
from phantom_core.initialization import gain_of, weights_generator
from phantom_core.layouts import (
    BlockDiagonalLinear,
    DenseLinear,
    LowRankLinear,
    PhantomLinear,
    SplitLinear,
    TensorColumnLinear,
    TensorGatherLinear,
    TensorRowLinear,
)
from phantom_core.layouts.local_part import local_part
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Activation,
    Arm,
    BlockDiagonalArm,
    DenseArm,
    Dtype,
    FeaturePlacement,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    TensorArm,
)
from phantom_core.task_shapes import TaskShape

_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "tanh": torch.tanh,
    "identity": lambda z: z,
}


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The spec's number format as torch's."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[dtype]


class FFN(nn.Module):
    """A feed-forward network whose layers are split over the ranks of one communicator.

    Args:
        input_layer: Features to the first shard.
        hidden_layers: In order; each one's input placement is the output placement of the one before.
        output_layer: Last shard to the full outputs.
        activation: Applied after the input layer and after every hidden layer.
        checkpointing: Whether backward computes the hidden layers' activations anew, a pair of layers at a
            time (a column/row pair, where there are such), instead of keeping what is inside a pair.
        compiled: Whether torch.compile compiles the hidden layers of a training step, all in one piece, or
            pair by pair with checkpointing. Evaluation runs uncompiled: its row counts vary.
        functional: Whether hidden layers exchange by torch's functional collectives, which count themselves
            only in `counting`.
    """

    def __init__(
        self,
        input_layer: SplitLinear,
        hidden_layers: Sequence[SplitLinear],
        output_layer: SplitLinear,
        activation: Activation,
        *,
        checkpointing: bool = False,
        compiled: bool = False,
        functional: bool = False,
    ) -> None:
        super().__init__()
        self.input_layer = input_layer
        self.hidden_layers = nn.ModuleList(hidden_layers)
        self.output_layer = output_layer
        self.activation: Activation = activation
        self.checkpointing = checkpointing
        self._functional = functional
        if compiled:
            # torch counts what it compiled for models long gone, and at some number gives up.
            torch.compiler.reset()
        # Without dynamic shapes a second batch size can't slow the first one's code down; in one piece, or
        # not at all: a part that silently ran uncompiled would be measured as compiled.
        self._compiled = torch.compile(_through, dynamic=False, fullgraph=True) if compiled else None
        placement = input_layer.output_placement
        for layer in self.layers[1:]:
            assert layer.input_placement == placement, "a layer can't read what the one before returns"
            placement = layer.output_placement
        assert placement == "full", "every rank needs all outputs"

    @property
    def layers(self) -> list[SplitLinear]:
        """All layers, input first."""
        hidden = [layer for layer in self.hidden_layers if isinstance(layer, SplitLinear)]
        return [self.input_layer, *hidden, self.output_layer]

    @property
    def communicator(self) -> Communicator:
        """The ranks that split the model; `communicator.counting()` counts what a step sends."""
        return self.input_layer.communicator

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features (b, F), or (b, F/p) where they are split, to outputs (b, O), equal on every rank."""
        training = torch.is_grad_enabled()
        through = _through if self._compiled is None or not training else self._compiled
        x = _ACTIVATIONS[self.activation](self.input_layer(features))
        hidden = self.layers[1:-1]
        if self.checkpointing and training:
            for start in range(0, len(hidden), LAYERS_PER_CHECKPOINT):
                pair = hidden[start : start + LAYERS_PER_CHECKPOINT]
                # There is no dropout, so no generator's state has to be kept, which no graph could capture.
                # Early stopping would save nothing but the last activation, and make the cost less plain.
                x = checkpoint(
                    through,
                    pair,
                    self.activation,
                    x,
                    use_reentrant=False,
                    preserve_rng_state=False,
                    early_stop=False,
                )
        else:
            x = through(hidden, self.activation, x)
        outputs: torch.Tensor = self.output_layer(x)
        return outputs

    @contextmanager
    def counting(self) -> Iterator[Traffic]:
        """Counts the collectives started inside, of every kind; compiled layers run uncompiled meanwhile."""
        compiled, self._compiled = self._compiled, None
        try:
            with self.communicator.counting(functional=self._functional) as traffic:
                yield traffic
        finally:
            self._compiled = compiled

    def parameter_count(self) -> int:
        """Trainable numbers over all ranks, those that ranks hold alike counted once."""
        total = 0
        for layer in self.layers:
            for name, parameter in layer.named_parameters():
                own = local_part(parameter).numel()
                total += own * (1 if name in layer.replicated else layer.world_size)
        return total

    def reset_parameters(self, seed: int) -> None:
        """Draws all weights anew, determined by seed and rank alone (`initialization`)."""
        for index, layer in enumerate(self.layers):
            gain = 1.0 if index == 0 else gain_of(self.activation)
            device = next(layer.parameters()).device
            layer.reset_parameters(weights_generator(seed, index, layer.rank, device), gain)


def _through(layers: Sequence[SplitLinear], activation: Activation, x: torch.Tensor) -> torch.Tensor:
    activate = _ACTIVATIONS[activation]
    for layer in layers:
        x = activate(layer(x))
    return x


def build_ffn(
    planned: PlannedArm,
    shape: TaskShape,
    placement: FeaturePlacement,
    group: dist.ProcessGroup | Communicator | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> FFN:
    """Builds this rank's part of an arm's network.

    Args:
        planned: The arm with its model.
        shape: Features and outputs of the task.
        placement: `whole`: every rank is given all features (b, F); `split`: rank j is given its (b, F/p).
        group: The arm's ranks, as many as its world size; None is the default group, or one rank.
        device: Where the weights live.
        seed: With the rank it determines the weights; torch's global generators are neither read nor moved.

    Returns:
        The network, in the model's number format. At its first input the ranks agree on the number of rows, unless
        built inside `Communicator.agreed`.

    Raises:
        LayoutError: Shapes can't be split over the ranks.
        RanksDisagreeError: Ranks were given different arguments.
        ValueError: The group's size is not the arm's.
    """
    ranks = group if isinstance(group, Communicator) else Communicator(group)
    where = torch.get_default_device() if device is None else torch.device(device)
    ranks.agree("a network", where, **settings_of(planned, shape, placement, seed))
    arm, model = planned.arm, planned.model
    if arm.world_size != ranks.world_size:
        raise ValueError(
            f"world_size = {arm.world_size} of arm {arm.name!r}, but its group has {ranks.world_size} "
            "ranks; give it a group of its own size"
        )
    dtype = torch_dtype(model.dtype)
    asks = not ranks.has_agreed
    # Sizes first: weights are drawn once, below, from the seed.
    with ranks.agreed(), torch.device("meta"):
        first = TensorColumnLinear if placement == "whole" else BlockDiagonalLinear
        ffn = FFN(
            first(shape.features, model.width, model.bias, ranks, dtype=dtype),
            [_hidden(arm, model, index, ranks, dtype) for index in range(model.depth)],
            TensorRowLinear(model.width, shape.outputs, model.bias, ranks, dtype=dtype),
            model.activation,
            checkpointing=planned.training.activation_checkpointing,
            compiled=isinstance(arm, TensorArm) and arm.compiled,
            functional=isinstance(arm, TensorArm) and arm.implementation == "dtensor",
        )
    if asks:
        # Rows are the same in all layers, so the first one asks for all.
        ffn.input_layer.ask_at_next_input()
    if ranks.world_size > 1:
        ranks.fuse_ghosts(where)
    ffn.to_empty(device=where)
    ffn.reset_parameters(seed)
    return ffn


def settings_of(
    planned: PlannedArm, shape: TaskShape, placement: FeaturePlacement, seed: int
) -> dict[str, object]:
    """All that an arm's ranks must be told alike, by name.

    Args:
        planned: The arm with its model and recipe.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        seed: Of weights and batches.
    """
    parts: dict[str, BaseModel] = {
        "arm": planned.arm,
        "model": planned.model,
        "training": planned.training,
        "task": shape,
    }
    told = {
        f"{part}.{name}": value
        for part, settings in parts.items()
        for name, value in settings.model_dump(mode="json").items()
    }
    return told | {"feature_placement": placement, "seed": seed}


def _hidden(arm: Arm, model: ModelSpec, index: int, ranks: Communicator, dtype: torch.dtype) -> SplitLinear:
    n, bias = model.width, model.bias
    match arm:
        case DenseArm():
            return DenseLinear(n, n, bias, ranks, dtype=dtype)
        case TensorArm(implementation="dtensor"):
            return _dtensor(arm, model, index, ranks, dtype)
        case TensorArm(form="gather"):
            return TensorGatherLinear(n, n, bias, ranks, dtype=dtype)
        case TensorArm():
            if index % 2:
                return TensorColumnLinear(n, n, bias, ranks, dtype=dtype)
            # The output layer reads shards, so a row layer that has no column layer after it scatters its
            # sum.
            return TensorRowLinear(n, n, bias, ranks, dtype=dtype, scatter_output=index == model.depth - 1)
        case PhantomArm():
            return PhantomLinear(n, n, arm.ghosts, bias, ranks, dtype=dtype)
        case BlockDiagonalArm():
            return BlockDiagonalLinear(n, n, bias, ranks, dtype=dtype)
        case LowRankArm():
            return LowRankLinear(n, n, arm.rank, bias, ranks, dtype=dtype)


def _dtensor(
    arm: TensorArm, model: ModelSpec, index: int, ranks: Communicator, dtype: torch.dtype
) -> SplitLinear:
    # Only here: it loads DTensor, for a second or two.
    from phantom_core.layouts.dtensor import DTensorLinear, Style

    style: Style = "row"
    if arm.form == "gather":
        style = "gather"
    elif index % 2:
        style = "column"
    elif index == model.depth - 1:
        style = "row_scatter"
    return DTensorLinear(model.width, model.width, style, model.bias, ranks, dtype=dtype)
