"""The arms that `layers.py` measures: every layout at one size, with the implementation that carries it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    Dtype,
    FeaturePlacement,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    StopAtSteps,
    TensorArm,
    TrainingSpec,
)
from phantom_core.task_shapes import TaskShape
from phantom_core.tasks import Dataset

PLACEMENT: FeaturePlacement = "split"
FEATURES, OUTPUTS, VALIDATION_ROWS = 256, 16, 64
BASELINE = "tensor column/row"
"""The arm that others are compared with."""
BASELINE_OVER_NCCL = f"{BASELINE} over NCCL"
"""The same with its sums by the library's collectives."""


@dataclass(frozen=True)
class Size:
    """One problem: width n, depth L, ghosts k, batch b, on p ranks."""

    n: int
    depth: int
    k: int
    b: int
    p: int

    def __str__(self) -> str:
        return f"n={self.n} L={self.depth} k={self.k} b={self.b} p={self.p}"


@dataclass(frozen=True)
class StepArm:
    """An arm at a size, and how it is carried out."""

    name: str
    """Its name in tables."""
    planned: PlannedArm
    """What is built."""
    nccl_only: bool = False
    """Whether all must travel by the library's collectives though the fused exchange could carry some of it."""
    ghosts_beside: bool | None = None
    """Whether ghosts are made beside the local product (`Communicator.makes_ghosts_beside`); None is as usual."""
    splits_products: bool = False
    """Whether tensor parallelism makes its large products in parts (`Communicator.splits_products`)."""

    @property
    def can_be_silent(self) -> bool:
        """Whether its collectives can be replaced: DTensor's go past the communicator."""
        arm = self.planned.arm
        return not (isinstance(arm, TensorArm) and arm.implementation == "dtensor")


def arms(size: Size, dtype: Dtype, names: Sequence[str] | None = None) -> list[StepArm]:
    """Every layout at a size; on one rank all of them are the dense layer, which stands for them.

    Args:
        size: The problem.
        dtype: Number format of weights and activations.
        names: Of several ranks' arms keep these alone, variants among them; None keeps all but the variants.

    Raises:
        ValueError: There is no arm of that name.
    """
    n, p, k = size.n, size.p, size.k
    if p == 1:
        return [StepArm("dense", _planned(DenseArm(name="dense"), size, dtype))]
    phantom = PhantomArm(name="phantom", world_size=p, ghosts=k)
    # As many weights as phantom: 2 n r = n^2 / p + k n p.
    low_rank = LowRankArm(name="low-rank", world_size=p, rank=max(1, round((n / p + k * p) / 2)))
    tensor = _planned(TensorArm(name="tensor", world_size=p), size, dtype)
    made = [
        StepArm(BASELINE, tensor),
        StepArm(BASELINE_OVER_NCCL, tensor, nccl_only=True),
        StepArm(
            "tensor gather", _planned(TensorArm(name="tensor", form="gather", world_size=p), size, dtype)
        ),
        StepArm(
            "DTensor",
            _planned(TensorArm(name="dtensor", implementation="dtensor", world_size=p), size, dtype),
        ),
        StepArm(
            "DTensor compiled",
            _planned(
                TensorArm(name="dtensor", implementation="dtensor", compiled=True, world_size=p), size, dtype
            ),
        ),
        StepArm("phantom", _planned(phantom, size, dtype)),
        StepArm("phantom over NCCL", _planned(phantom, size, dtype), nccl_only=True),
        StepArm("block-diagonal", _planned(BlockDiagonalArm(name="block", world_size=p), size, dtype)),
        StepArm("low-rank", _planned(low_rank, size, dtype)),
    ]
    if names is None:
        return made
    made += _variants(made)
    missing = sorted({*names} - {arm.name for arm in made})
    if missing:
        raise ValueError(f"no arm is called {missing[0]!r}; there are {', '.join(arm.name for arm in made)}")
    return [arm for arm in made if arm.name in names]


def _variants(made: Sequence[StepArm]) -> list[StepArm]:
    """The same arms with one switch the other way, to be measured beside them."""
    beside = [
        replace(arm, name=f"{arm.name} {where}", ghosts_beside=where == "ghosts beside")
        for arm in made
        if arm.name == "phantom"
        for where in ("ghosts beside", "ghosts in line")
    ]
    after = [
        replace(
            arm,
            name=f"{arm.name} update after",
            planned=arm.planned.model_copy(
                update={"training": arm.planned.training.model_copy(update={"update": "after"})}
            ),
        )
        for arm in made
    ]
    split = [
        replace(arm, name=f"{arm.name} split", splits_products=True)
        for arm in made
        if arm.name in (BASELINE, "tensor gather")
    ]
    return [*beside, *after, *split]


def _planned(arm: Arm, size: Size, dtype: Dtype) -> PlannedArm:
    return PlannedArm(
        arm=arm,
        model=ModelSpec(width=size.n, depth=size.depth, bias=False, dtype=dtype),
        training=TrainingSpec(
            batch_size=size.b,
            optimizer="sgd",
            # Small: steps are timed, and numbers should stay those of a network that learns.
            learning_rate=1e-6,
            stop=StopAtSteps(steps=1),
        ),
    )


@cache
def rows(count: int, features: int = FEATURES) -> Dataset:
    """Random rows to train on, the same on every rank: what is learned makes no step longer or shorter."""
    generator = np.random.default_rng(0)

    def normal(*sizes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return generator.standard_normal(sizes, dtype=np.float32)

    return Dataset(
        train_features=normal(count, features),
        train_targets=normal(count, OUTPUTS),
        validation_features=normal(VALIDATION_ROWS, features),
        validation_targets=normal(VALIDATION_ROWS, OUTPUTS),
        shape=TaskShape(features=features, outputs=OUTPUTS, loss="mean_squared_error"),
        placement=PLACEMENT,
    )


def tiny_dense_arm() -> tuple[PlannedArm, Dataset]:
    """A network on one rank that keeps the host busier than the device."""
    size = Size(n=64, depth=8, k=1, b=32, p=1)
    return _planned(DenseArm(name="tiny"), size, "float32"), rows(256)
