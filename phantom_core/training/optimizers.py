"""The update of a model's weights: fused SGD or AdamW, and float32 master weights for bfloat16 models.

torch's own functions do the arithmetic. Its optimizer classes are left out: they make their state in the
first step, where this needs all of it at fixed addresses from the start, and constructing one imports
torch's compiler, which costs every rank a second or two.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType

import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from phantom_core.collectives import Communicator
from phantom_core.cost import LEAST_IN_ONE_PASS
from phantom_core.layouts.local_part import local_part
from phantom_core.spec import TrainingSpec

ADAM_BETAS = (0.9, 0.999)
"""Decay of AdamW's two moments."""
ADAM_EPS = 1e-8
"""Added to the root of AdamW's second moment."""


class WeightUpdate:
    """SGD or AdamW over a model's weights, with the learning rate in a tensor on the device.

    A bfloat16 weight has 8 significant bits, so an update of less than 1/256 of it would be lost. Updates
    therefore go to float32 copies (masters) of such weights, which the model's weights are then rounded
    from. Per weight that is 2 bytes of weight, 2 of gradient, 4 of master, 4 of its gradient, and the
    optimizer's state. On CUDA weights are updated in one pass by `update_kernels`, where Triton is there;
    their masters need no gradients of their own. Only small ones that are all updated at the end share
    torch's kernels instead. `cost.MemoryEstimate` counts all of this.

    Args:
        model: Its weights are updated in place.
        training: Optimizer, momentum, weight decay.
        device: Where the weights are.
    """

    def __init__(self, model: nn.Module, training: TrainingSpec, device: torch.device) -> None:
        # CUDA's fused kernels read a float32 rate; on the CPU full precision costs nothing.
        rate_dtype = torch.float32 if device.type == "cuda" else torch.float64
        self.rate = torch.zeros(1, dtype=rate_dtype, device=device)
        """Learning rate (1,) of the next step."""
        self._training = training
        self._device = device
        self._kernels = _kernels(device)
        # A kernel for a small weight alone costs its launch, which backward hides.
        least = LEAST_IN_ONE_PASS if training.update == "after" else 1
        self._slots = [
            _Slot(weight, training, one_pass_from=None if self._kernels is None else least)
            for weight in model.parameters()
            if weight.requires_grad
        ]
        self._layer_of = _by_layer(model, self._slots)
        self._arrived: set[_Slot] = set()
        """Those whose gradient `beside_backward` has seen, until `step`."""
        self._updated: set[_Slot] = set()
        """Those that it has updated."""

    def zero_grad(self) -> None:
        """Drops all gradients, so that the next backward pass writes them instead of adding to them."""
        self._begin()
        for slot in self._slots:
            slot.weight.grad = None

    @contextmanager
    def beside_backward(self, ranks: Communicator) -> Iterator[None]:
        """Updates a layer's weights as soon as the backward pass inside has made their gradients, instead of `step`.

        A layer's backward function has read its weights, for the gradient of its input, before their own
        gradients are handed over, all at once. On CUDA updates go to a stream of their own, which waits for what was
        enqueued until then: being bound by memory they run beside GEMMs that aren't. All of them are done at
        the end, as far as the current stream can see.

        Args:
            ranks: Of the model; knows where gradients are made.
        """
        work = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        beside = None if work is None else _update_stream(self._device)

        @torch.no_grad()
        def update(slot: _Slot, _: torch.Tensor) -> None:
            layer = self._layer_of[slot]
            self._arrived.add(slot)
            if not self._arrived.issuperset(layer):
                return
            self._updated.update(layer)
            if beside is None or work is None:
                self._update(layer)
                return
            beside.wait_stream(work)
            ranks.make_wait_for_gradients(beside)
            with torch.cuda.stream(beside):
                self._update(layer)

        # Not for good: a weight that knows this object would keep both alive.
        hooks = [
            slot.weight.register_post_accumulate_grad_hook(partial(update, slot))  # type: ignore[no-untyped-call]
            for slot in self._slots
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if beside is not None and work is not None and self._updated:
                work.wait_stream(beside)

    @torch.no_grad()
    def step(self) -> None:
        """Updates every weight that has a gradient and was not updated beside the backward pass."""
        self._update(
            [slot for slot in self._slots if slot.weight.grad is not None and slot not in self._updated]
        )
        self._begin()

    def _begin(self) -> None:
        self._arrived.clear()
        self._updated.clear()

    def _update(self, ready: Sequence["_Slot"]) -> None:
        slots = [slot for slot in ready if not slot.one_pass]
        self._in_one_pass([slot for slot in ready if slot.one_pass])
        rounded = [slot for slot in slots if slot.rounded]
        if rounded:
            torch._foreach_copy_(
                [slot.gradient for slot in rounded], [slot.weight_gradient for slot in rounded]
            )
        if slots and self._training.optimizer == "sgd":
            self._sgd(slots)
        elif slots:
            self._adamw(slots)
        if rounded:
            torch._foreach_copy_([slot.own for slot in rounded], [slot.master for slot in rounded])

    def tensors(self) -> dict[str, torch.Tensor]:
        """What steps change and later steps depend on: weights, masters and state, by stable names."""
        return {
            f"{index}.{name}": tensor
            for index, slot in enumerate(self._slots)
            for name, tensor in slot.tensors().items()
        }

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of `tensors` on the host, so that they don't count as the device's memory."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Brings back a snapshot in place: addresses that a CUDA graph knows stay valid.

        Args:
            saved: Of `snapshot`, of this object or of one built alike.

        Raises:
            ValueError: The snapshot is of another model or optimizer; nothing was changed.
        """
        present = self.tensors()
        differing = sorted(
            name
            for name in present.keys() | saved.keys()
            if name not in present or name not in saved or present[name].shape != saved[name].shape
        )
        if differing:
            raise ValueError(
                f"the saved state is of another model or optimizer: {len(differing)} of its tensors, such as "
                f"{differing[0]}, are not this one's; restore it into the arm that it was saved from"
            )
        for name, tensor in present.items():
            tensor.copy_(saved[name])

    def _in_one_pass(self, slots: list["_Slot"]) -> None:
        if not slots:
            return
        assert self._kernels is not None, "only where there are kernels is a slot updated by one"
        adam = self._training.optimizer == "adamw"
        if adam:
            torch._foreach_add_([slot.state["steps"] for slot in slots], 1)
        # One launch for a layer: on a small one a launch is longer than what it does.
        for layer in _grouped(slots, self._layer_of):
            self._launch(layer, adam=adam)

    def _launch(self, layer: list["_Slot"], *, adam: bool) -> None:
        assert self._kernels is not None
        block = self._kernels.BLOCK
        numels = tuple(slot.master.numel() for slot in layer)
        grid = (sum(-(-numel // block) for numel in numels),)
        weights = tuple(slot.own for slot in layer)
        masters = tuple(slot.master for slot in layer)
        gradients = tuple(slot.weight_gradient.contiguous() for slot in layer)
        if adam:
            self._kernels.adamw[grid](
                weights,
                masters,
                gradients,
                tuple(slot.state["first_moment"] for slot in layer),
                tuple(slot.state["second_moment"] for slot in layer),
                tuple(slot.state["steps"] for slot in layer),
                numels,
                self.rate,
                self._training.weight_decay,
                beta1=ADAM_BETAS[0],
                beta2=ADAM_BETAS[1],
                log_beta1=math.log(ADAM_BETAS[0]),
                log_beta2=math.log(ADAM_BETAS[1]),
                eps=ADAM_EPS,
                block=block,
            )
            return
        has_momentum = self._training.momentum > 0
        self._kernels.sgd[grid](
            weights,
            masters,
            gradients,
            tuple(slot.state["momentum"] for slot in layer) if has_momentum else masters,
            numels,
            self.rate,
            self._training.momentum,
            self._training.weight_decay,
            has_momentum=has_momentum,
            block=block,
        )

    def _sgd(self, slots: list["_Slot"]) -> None:
        sgd(
            [slot.master for slot in slots],
            [slot.gradient for slot in slots],
            [slot.state.get("momentum") for slot in slots],
            fused=True,
            lr=self.rate,  # type: ignore[arg-type]  # a tensor is taken, as by torch.optim.SGD
            momentum=self._training.momentum,
            weight_decay=self._training.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adamw(self, slots: list["_Slot"]) -> None:
        adamw(
            [slot.master for slot in slots],
            [slot.gradient for slot in slots],
            [slot.state["first_moment"] for slot in slots],
            [slot.state["second_moment"] for slot in slots],
            [],
            [slot.state["steps"] for slot in slots],
            fused=True,
            amsgrad=False,
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            lr=self.rate,
            weight_decay=self._training.weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )


def _by_layer(model: nn.Module, slots: Sequence["_Slot"]) -> dict["_Slot", list["_Slot"]]:
    """Every weight's layer: the weights of the module that it belongs to, itself among them.

    A weight that several modules share belongs to the first: it is updated once.
    """
    slot_of = {slot.weight: slot for slot in slots}
    layer_of: dict[_Slot, list[_Slot]] = {}
    for module in model.modules():
        own = [slot_of[weight] for weight in module.parameters(recurse=False) if weight in slot_of]
        layer = [slot for slot in own if slot not in layer_of]
        layer_of |= dict.fromkeys(layer, layer)
    return layer_of


def _grouped(slots: Sequence["_Slot"], layer_of: Mapping["_Slot", list["_Slot"]]) -> list[list["_Slot"]]:
    """Weights of one layer together."""
    groups: dict[int, list[_Slot]] = {}
    for slot in slots:
        groups.setdefault(id(layer_of[slot]), []).append(slot)
    return list(groups.values())


def _kernels(device: torch.device) -> ModuleType | None:
    """The one-pass kernels, where they can run."""
    if device.type != "cuda":
        return None
    try:
        from phantom_core.training import update_kernels
    except ImportError:
        return None
    return update_kernels


@cache
def _update_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Slot:
    """One weight with all that its update needs; the state's zeros are what torch's optimizers begin with."""

    def __init__(self, weight: nn.Parameter, training: TrainingSpec, *, one_pass_from: int | None) -> None:
        self.weight = weight
        self.own = local_part(weight)
        """The weight's numbers on this rank, in place: updates need no DTensor arithmetic."""
        self.rounded = weight.dtype == torch.bfloat16
        self.master = self.own.float() if self.rounded else self.own
        self.one_pass = (
            one_pass_from is not None
            and self.rounded
            and self.own.is_contiguous()
            and self.own.numel() >= one_pass_from
        )
        """Whether a kernel of `update_kernels` updates it, with the others of its layer."""
        needs_copy = self.rounded and not self.one_pass
        self._master_gradient = torch.empty_like(self.master) if needs_copy else None
        self.state: dict[str, torch.Tensor] = {}
        if training.optimizer == "adamw":
            self.state["first_moment"] = torch.zeros_like(self.master)
            self.state["second_moment"] = torch.zeros_like(self.master)
            self.state["steps"] = torch.zeros((), dtype=torch.float32, device=self.own.device)
        elif training.momentum:
            self.state["momentum"] = torch.zeros_like(self.master)

    @property
    def weight_gradient(self) -> torch.Tensor:
        """What the backward pass left."""
        gradient = self.weight.grad
        assert gradient is not None, "only weights that have a gradient are updated"
        # A DTensor's gradient may be a sum yet to be made; its local part would be one rank's term.
        placed = getattr(self.weight, "placements", None), getattr(gradient, "placements", None)
        assert placed[0] == placed[1], f"the gradient lies as {placed[1]}, its weight as {placed[0]}"
        return local_part(gradient)

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient in the master's number format."""
        return self.weight_gradient if self._master_gradient is None else self._master_gradient

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weight, master and state."""
        own = {"master": self.master} if self.rounded else {}
        return {"weight": self.own} | own | self.state
