"""The update of a model's weights: a fused optimizer, and float32 master weights for bfloat16 models."""

from collections.abc import Mapping

import torch
from torch import nn

from phantom_core.spec import TrainingSpec


class WeightUpdate:
    """SGD or AdamW over a model's weights, with the learning rate in a tensor on the device.

    A bfloat16 weight has 8 significant bits, so an update of less than 1/256 of it would be lost. The
    optimizer therefore works on float32 copies (masters) of such weights, which the model's weights are
    then rounded from. Per weight that is 2 bytes of weight, 2 of gradient, 4 of master, 4 of its gradient,
    and the optimizer's state.

    Args:
        model: Its weights are updated in place.
        training: Optimizer, momentum, weight decay.
        device: Where the weights are.
    """

    def __init__(self, model: nn.Module, training: TrainingSpec, device: torch.device) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._masters = [_master(weight) for weight in self._weights]
        # CUDA's fused kernels read a float32 rate; on the CPU full precision costs nothing.
        rate_dtype = torch.float32 if device.type == "cuda" else torch.float64
        self.rate = torch.zeros(1, dtype=rate_dtype, device=device)
        """Learning rate (1,) of the next step."""
        self._optimizer = _optimizer(self._masters, training, self.rate)

    def zero_grad(self) -> None:
        """Drops all gradients, so that the next backward pass writes them instead of adding to them."""
        for weight in self._weights:
            weight.grad = None

    def step(self) -> None:
        """Updates every weight that has a gradient."""
        rounded: list[torch.Tensor] = []
        masters: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        master_gradients: list[torch.Tensor] = []
        for weight, master in zip(self._weights, self._masters, strict=True):
            if master is not weight and weight.grad is not None:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                rounded.append(weight)
                masters.append(master)
                gradients.append(weight.grad)
                master_gradients.append(master.grad)
        with torch.no_grad():
            if rounded:
                torch._foreach_copy_(master_gradients, gradients)
            self._optimizer.step()
            if rounded:
                torch._foreach_copy_(rounded, masters)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What steps change and later steps depend on (weights, masters, state), by stable names."""
        tensors = {}
        for index, (weight, master) in enumerate(zip(self._weights, self._masters, strict=True)):
            tensors[f"{index}.weight"] = weight.detach()
            if master is not weight:
                tensors[f"{index}.master"] = master.detach()
            state: dict[str, torch.Tensor] = self._optimizer.state.get(master, {})
            tensors |= {f"{index}.{name}": value for name, value in state.items() if value is not None}
        return tensors

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of `tensors` on the host, so that they don't count as the device's memory."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Brings back a snapshot in place: addresses that a CUDA graph knows stay valid.

        State that the optimizer has made since is zeroed, which is what fresh state of SGD and AdamW is.

        Args:
            saved: Of `snapshot`, of this object or of one built alike.

        Raises:
            ValueError: The snapshot is of another model or optimizer.
        """
        present = self.tensors()
        for name, tensor in present.items():
            if name not in saved:
                tensor.zero_()
            elif saved[name].shape != tensor.shape:
                raise ValueError(
                    f"saved tensor {name} has shape {tuple(saved[name].shape)}, the model's has "
                    f"{tuple(tensor.shape)}; restore into the arm that it was saved from"
                )
            else:
                tensor.copy_(saved[name])
        for name in saved.keys() - present.keys():
            self._adopt(name, saved[name])

    def _adopt(self, name: str, value: torch.Tensor) -> None:
        """Takes over state that this optimizer, having made no step yet, doesn't have."""
        index, _, key = name.partition(".")
        if key in ("weight", "master") or int(index) >= len(self._masters):
            raise ValueError(f"saved tensor {name} has no place in this model; restore into the same arm")
        master = self._masters[int(index)]
        self._optimizer.state[master][key] = value.to(master.device, copy=True)


def _master(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().float()) if weight.dtype == torch.bfloat16 else weight


def _optimizer(
    weights: list[nn.Parameter], training: TrainingSpec, rate: torch.Tensor
) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer
    match training.optimizer:
        case "sgd":
            optimizer = torch.optim.SGD(
                weights,
                lr=rate,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                fused=True,
            )
        case "adamw":
            optimizer = torch.optim.AdamW(
                weights,
                lr=rate,
                weight_decay=training.weight_decay,
                fused=True,
                capturable=rate.device.type == "cuda",
            )
    for group in optimizer.param_groups:
        # The optimizer may have copied the tensor; the step must see what is written to this one.
        group["lr"] = rate
    return optimizer
