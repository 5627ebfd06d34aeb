"""Initial weights: a layer's z has the variance of a dense layer's z, whatever the layout.

For z_o = sum_i W_oi x_i over `fan_in` inputs with independent, zero-mean weights of variance s^2,
Var z = fan_in s^2 E[x^2]. The framework's scheme is He's (arXiv 1502.01852, equation 10): s^2 = gain^2 /
fan_in, where gain^2 = 1 / E[activation(z)^2] undoes what the activation that made x took, so that Var z
stays at 1 over any depth. Input features have unit variance as they are, so the input layer has gain 1;
hidden layers and the output layer have the activation's gain. Each layout's `reset_parameters` states how
it divides gain^2 / fan_in among its factors. Biases start at 0.

Weights come from generators of their own, never from torch's global one, seeded by (seed, layer, rank), so
parts on different ranks are independent and nothing else that draws numbers can shift them.
"""

import math

import torch

from phantom_core.plan import derived_seed
from phantom_core.spec import Activation

GELU_GAIN = 1 / math.sqrt(1 / 3 + 1 / (2 * math.sqrt(3) * math.pi))
"""1 / sqrt(E[gelu(z)^2]) for z ~ N(0, 1); `torch.nn.init.calculate_gain` has none."""


def gain_of(activation: Activation) -> float:
    """The framework's gain for weights that read an activation: ReLU sqrt 2, tanh 5/3, identity 1.

    For GELU, where PyTorch has none, E[gelu(z)^2] = E[z^2 Phi(z)^2] = 1/3 + 1 / (2 sqrt(3) pi) gives 1.534.
    """
    if activation == "gelu":
        return GELU_GAIN
    if activation == "identity":
        return 1.0
    return float(torch.nn.init.calculate_gain(activation))


def weights_generator(
    seed: int, layer: int, rank: int, device: torch.device | None
) -> torch.Generator | None:
    """The generator of one layer's weights on one rank; None on the meta device, which holds no values."""
    where = torch.device("cpu") if device is None else device
    if where.type == "meta":
        return None
    return torch.Generator(where).manual_seed(derived_seed(seed, "weights", layer, rank))


def drawn_generator(rank: int, device: torch.device) -> torch.Generator | None:
    """A generator for a layer built on its own: seeded by one draw of torch's global generator and the rank.

    So `torch.manual_seed` makes it reproducible, and ranks with the same global seed still get different
    parts.
    """
    if device.type == "meta":
        return None
    return weights_generator(int(torch.randint(2**31, (), device="cpu")), 0, rank, device)


@torch.no_grad()
def fill_normal(weight: torch.Tensor, variance: float, generator: torch.Generator | None) -> None:
    """Draws a weight from N(0, variance) in place."""
    if weight.device.type != "meta":
        weight.normal_(0.0, math.sqrt(variance), generator=generator)
