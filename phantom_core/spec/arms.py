"""The ways to split the network; one strategy each."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phantom_core.spec.fields import Name, SpecModel, Whole
from phantom_core.spec.model import ModelOverrides
from phantom_core.spec.training import TrainingOverrides


class ArmBase(SpecModel):
    """What arms of every strategy have."""

    name: Name
    """Unique within the experiment."""
    world_size: Whole = Field(1, ge=1, le=65_536)
    """Ranks that the arm is split over, p."""
    model: ModelOverrides = ModelOverrides()
    """What this arm changes of the model."""
    training: TrainingOverrides = TrainingOverrides()
    """What this arm changes of the recipe."""


class DenseArm(ArmBase):
    """The unsplit network on one rank."""

    strategy: Literal["dense"] = "dense"
    world_size: Literal[1] = 1
    """Always 1."""


class TensorArm(ArmBase):
    """Tensor parallelism: every rank holds a slice of every weight matrix."""

    strategy: Literal["tensor"] = "tensor"
    form: Literal["gather", "column_row"] = "column_row"
    """`gather`: all-gather before every layer (the phantom paper's baseline); `column_row`: as Megatron."""
    implementation: Literal["native", "dtensor"] = "native"
    """`native`: Ghostwatt's layers; `dtensor`: PyTorch's own `parallelize_module`, an outside peer."""
    compiled: bool = False
    """Whether `torch.compile` compiles the hidden layers of a `dtensor` arm."""

    @model_validator(mode="after")
    def _compiled_is_dtensors(self) -> Self:
        if self.compiled and self.implementation != "dtensor":
            raise ValueError(
                f"compiled = true goes with implementation = dtensor, not {self.implementation}, whose step is "
                "captured in a CUDA graph as it is; remove it, or set implementation: dtensor"
            )
        return self


class PhantomArm(ArmBase):
    """Phantom parallelism (arXiv 2508.00960): ranks exchange k ghosts instead of n / p neurons."""

    strategy: Literal["phantom"] = "phantom"
    ghosts: Whole = Field(ge=1, le=1_048_576)
    """Compressed activations that each rank sends, k; fewer than n / p."""


class BlockDiagonalArm(ArmBase):
    """No exchange between ranks at all inside the hidden layers: phantom with k = 0."""

    strategy: Literal["block_diagonal"] = "block_diagonal"


class LowRankArm(ArmBase):
    """Every hidden weight is U V with r inner values; only those cross between ranks."""

    strategy: Literal["low_rank"] = "low_rank"
    rank: Whole = Field(ge=1, le=1_048_576)
    """Inner values, r; at most n."""


Arm = Annotated[
    DenseArm | TensorArm | PhantomArm | BlockDiagonalArm | LowRankArm, Field(discriminator="strategy")
]
