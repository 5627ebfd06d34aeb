"""The network that the arms split, and what one arm may change of it."""

from typing import Literal

from pydantic import Field

from phantom_core.spec.fields import SpecModel, Whole

MAX_WIDTH = 1_048_576
"""Most neurons of a hidden layer."""

Activation = Literal["relu", "gelu", "tanh", "identity"]
Dtype = Literal["float32", "bfloat16", "float64"]


class ModelSpec(SpecModel):
    """The feed-forward network: input layer (features to n), L hidden layers (n to n), output layer."""

    width: Whole = Field(ge=1, le=MAX_WIDTH)
    """Neurons per hidden layer, n."""
    depth: Whole = Field(2, ge=1, le=1_024)
    """Hidden layers, L; these are what an arm's strategy splits."""
    activation: Activation = "relu"
    """Applied after the input layer and after every hidden layer."""
    bias: bool = True
    """Whether layers have a bias."""
    dtype: Dtype = "float32"
    """Number format of weights and activations."""
    tf32: bool = False
    """Whether float32 matrix products may round their inputs to TF32 (10 bits) on GPUs that have it."""

    @property
    def number_format(self) -> str:
        """What arms must share to be comparable: `tf32` for float32 with TF32 products, else the dtype."""
        return "tf32" if self.tf32 else self.dtype


class ModelOverrides(SpecModel):
    """What one arm changes of the experiment's model; None leaves a field as it is."""

    width: Whole | None = Field(None, ge=1, le=MAX_WIDTH)
    """Neurons per hidden layer, n."""
    depth: Whole | None = Field(None, ge=1, le=1_024)
    """Hidden layers, L."""
    activation: Activation | None = None
    """Applied after the input layer and after every hidden layer."""
    bias: bool | None = None
    """Whether layers have a bias."""
    dtype: Dtype | None = None
    """Number format of weights and activations."""
    tf32: bool | None = None
    """Whether float32 matrix products may round their inputs to TF32."""
