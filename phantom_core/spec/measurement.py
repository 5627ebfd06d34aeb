"""How energy is measured, and how often the arms are repeated."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from phantom_core.intervals import FEWEST_SEQUENTIAL_PAIRS
from phantom_core.spec.fields import Number, Seed, SpecModel, Whole, no_boolean

MAX_ROUNDS = 1_000
"""Most passes over all arms in one experiment."""

GpuScope = Literal["gpu", "module"]


def _number_or_auto(value: object) -> object:
    # Judged here and not by the union below, of which each half would complain of what is meant for the other.
    if value == "auto":
        return value
    no_boolean(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int | float) or value != value // 1:
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
        raise ValueError(
            f"rounds = {shown} is neither a whole number nor auto; give a number such as 5, or auto"
        )
    if value < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    if value > MAX_ROUNDS:
        raise PydanticKnownError("less_than_equal", {"le": MAX_ROUNDS})
    return int(value)


Rounds = Annotated[
    Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | Literal["auto"], BeforeValidator(_number_or_auto)
]


class MeasurementSpec(SpecModel):
    """How energy is measured and how often the arms are repeated."""

    rounds: Rounds = 5
    """Passes over all arms, each in its own shuffled order; a comparison pairs arms within a round.
    `auto`: as many as it takes for every arm's ratio to be known to ± `precision`, at most `max_rounds`."""
    precision: Number = Field(0.02, gt=0, lt=1)
    """Wished half-width of a ratio's interval, as a share of the ratio; what `rounds: auto` goes on for."""
    min_rounds: Whole = Field(FEWEST_SEQUENTIAL_PAIRS, ge=FEWEST_SEQUENTIAL_PAIRS, le=MAX_ROUNDS)
    """Fewest rounds that `rounds: auto` makes."""
    max_rounds: Whole = Field(30, ge=FEWEST_SEQUENTIAL_PAIRS, le=MAX_ROUNDS)
    """Most rounds that `rounds: auto` makes."""
    seed: Seed = 0
    """Seed of the arm order and, with the round, of each run's weights and batches."""
    warmup_steps: Whole = Field(5, ge=0, le=100_000)
    """Steps before the first window, on weights that are restored afterwards."""
    minimum_window_s: Number = Field(2.0, ge=0, le=3_600)
    """A run whose training windows together are shorter gets steps in a `steady` window, for J per step."""
    energy_precision: Number = Field(0.05, gt=0, lt=1)
    """Wished bound (±) on the meter's reading error of joules per step, as a share; a run whose training windows
    give a wider one gets steps in a `steady` window that is long enough for it."""
    idle_baseline_s: Number = Field(2.0, ge=0, le=3_600)
    """Seconds of idle power measured before the first round and after the last; 0 measures none."""
    gpu_scope: GpuScope = "gpu"
    """What a GPU's energy and power cover: `gpu`, the GPU with its memory; `module`, the whole module of a superchip
    (GH200), its CPU included. Where the driver tells no module's, energy is unknown. CPUs have scopes of their own."""
    sample_rate_hz: Number = Field(10.0, gt=0, le=50)
    """Power samples per second and board, taken outside the training processes."""

    @property
    def rounds_planned(self) -> int:
        """Rounds that are made unless `rounds: auto` ends them earlier."""
        return self.max_rounds if self.rounds == "auto" else self.rounds

    @model_validator(mode="after")
    def _fewest_before_most(self) -> Self:
        if self.rounds == "auto" and self.min_rounds > self.max_rounds:
            raise ValueError(
                f"min_rounds = {self.min_rounds} is more than max_rounds = {self.max_rounds}; raise max_rounds"
            )
        return self
