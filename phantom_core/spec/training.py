"""The recipe that every arm follows, and what one arm may change of it."""

from typing import Literal

from pydantic import Field

from phantom_core.spec.fields import Number, SpecModel, Whole
from phantom_core.spec.stop_rules import StopRule

UpdateTiming = Literal["overlapped", "after"]


class Schedule(SpecModel):
    """Learning rate over steps, as a factor on `learning_rate`."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    """Shape after warm-up: constant, or falling to `final_fraction` as a cosine or a line."""
    warmup_steps: Whole = Field(0, ge=0, le=1_000_000_000)
    """Steps over which the factor rises linearly from 0 to 1."""
    decay_steps: Whole = Field(1_000, ge=1, le=1_000_000_000)
    """Steps after warm-up at which `final_fraction` is reached; unused when constant."""
    final_fraction: Number = Field(0.0, ge=0, le=1)
    """Factor at and after the end of the decay."""


class TrainingSpec(SpecModel):
    """The recipe that every arm follows."""

    batch_size: Whole = Field(256, ge=1, le=16_777_216)
    """Rows per step over the whole model, b: all ranks of an arm work on the same rows."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """Which optimizer."""
    learning_rate: Number = Field(1e-3, gt=0, le=1_000)
    """Peak learning rate."""
    momentum: Number = Field(0.0, ge=0, lt=1)
    """SGD's momentum; unused by adamw."""
    weight_decay: Number = Field(0.0, ge=0, le=100)
    """Decoupled weight decay (adamw), or L2 (sgd)."""
    schedule: Schedule = Schedule()
    """Learning rate over steps."""
    activation_checkpointing: bool = False
    """Whether backward computes the hidden layers' activations anew, pair by pair, instead of keeping them."""
    update: UpdateTiming = "overlapped"
    """When weights are updated: `overlapped`, each once backward has made its gradient, on GPUs beside the rest of
    backward; `after`, all of them when backward is over, as compiled arms always do. Equal to the bit."""
    stop: StopRule
    """When a run ends."""
    evaluation_interval: Whole = Field(100, ge=1, le=1_000_000_000)
    """Steps between evaluations; stop rules that look at loss, time or energy look here."""


class TrainingOverrides(SpecModel):
    """What one arm changes of the recipe; None leaves a field as it is."""

    batch_size: Whole | None = Field(None, ge=1, le=16_777_216)
    """Rows per step."""
    optimizer: Literal["sgd", "adamw"] | None = None
    """Which optimizer."""
    learning_rate: Number | None = Field(None, gt=0, le=1_000)
    """Peak learning rate."""
    momentum: Number | None = Field(None, ge=0, lt=1)
    """SGD's momentum."""
    weight_decay: Number | None = Field(None, ge=0, le=100)
    """Weight decay."""
    schedule: Schedule | None = None
    """Learning rate over steps."""
    activation_checkpointing: bool | None = None
    """Whether backward computes the hidden layers' activations anew."""
    update: UpdateTiming | None = None
    """When weights are updated."""
