"""What a spec would need and cost, as it is shown."""

from services.errors import Problem
from services.views.base import View


class ArmCostView(View):
    """What one arm costs by the formulas; estimates, all of them."""

    arm: str
    """Name."""
    strategy: str
    """How it is split."""
    world_size: int
    """Ranks, p."""
    width: int
    """Neurons per hidden layer, n."""
    control_of: tuple[str, ...]
    """Phantom arms that it was added for."""
    parameters: int
    """Trainable weights over all ranks."""
    flops_per_step: float
    """Over all ranks, forward and backward."""
    bytes_sent_per_step: float
    """Over all ranks."""
    memory_per_rank_bytes: int
    """Largest rank: weights, gradients, optimizer state, activations."""
    energy_per_step_mj: float | None = None
    """Predicted; None until there is a profile of the device."""
    energy_reason: str | None = None
    """Why the energy isn't predicted."""


class ValidationView(View):
    """What a spec would need and cost, without running it."""

    valid: bool
    """Whether it would be accepted."""
    problems: tuple[Problem, ...]
    """What is wrong; empty if valid."""
    warnings: tuple[Problem, ...]
    """What is worth knowing before it runs."""
    baseline: str
    """Arm that the others would be compared with."""
    arms: tuple[ArmCostView, ...]
    """All arms, the added controls among them."""
    rounds: int
    """Passes over all arms."""
    runs: int
    """Arms times rounds."""
    ranks: int
    """Ranks that the worker group needs at once."""
    longest_s: float
    """Most seconds of training over all runs, from the hard limits; set-up and evaluation come on top."""
    deadline_s: float
    """After this the experiment is stopped whatever it does."""
    predicted_energy_mj: float | None
    """None until a profile of the device was measured."""
    predicted_energy_reason: str | None
    """Why it isn't predicted."""
