"""The formula's number of launches is that of the operations which a step really makes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from phantom_core.plan import PlannedArm
from phantom_core.spec import Arm, DenseArm, ModelSpec, PhantomArm, StopAtSteps, TensorArm, TrainingSpec
from phantom_core.step_work import step_work
from phantom_core.task_shapes import TaskShape
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer, optimizers
from tests.distributed import run_ranks
from tests.phantom_core.arms import dtensor_arms, every_arm

_NO_KERNEL = (
    "_local_scalar_dense _unsafe_view _wrap_tensor_autograd alias as_strided detach empty empty_like empty_strided "
    "expand lift_fresh new_empty new_empty_strided permute reshape select slice split squeeze squeeze_ t transpose "
    "unbind unsqueeze view wait_tensor"
)
"""Operations that compute nothing: views, memory, waits."""
_TWO_KERNELS = "all_reduce"
"""torch's functional sum copies what it is given, out of the mode's sight, and sums the copy."""
_COPIED_BY_GLOO = "_reduce_scatter_base_"
"""gloo makes a copy after it, which other libraries don't."""
SQUARES = "mean_squared_error"


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that would be a kernel each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # what a DTensor does here is seen when it does it
        name = func.name().split("::")[1].split(".")[0]
        if name not in _NO_KERNEL.split():
            self.operations[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        counted = self.operations
        return counted.total() + counted[_TWO_KERNELS] - counted[_COPIED_BY_GLOO]


def rows(loss: str) -> Dataset:
    generator = np.random.default_rng(0)

    def targets(count: int) -> Any:
        if loss == "cross_entropy":
            return generator.integers(4, size=count)
        return generator.standard_normal((count, 4), dtype=np.float32)

    def features(count: int) -> Any:
        return generator.standard_normal((count, 24), dtype=np.float32)

    return Dataset(
        train_features=features(32),
        train_targets=targets(32),
        validation_features=features(8),
        validation_targets=targets(8),
        shape=TaskShape.model_validate({"features": 24, "outputs": 4, "loss": loss}),
        placement="split",
    )


def planned(arm: Arm, **changes: Any) -> PlannedArm:
    def of(model: type[Any], **defaults: Any) -> Any:
        return model(**(defaults | {name: changes[name] for name in changes if name in model.model_fields}))

    training = of(TrainingSpec, batch_size=8, optimizer="sgd", stop=StopAtSteps(steps=1))
    return PlannedArm(arm=arm, model=of(ModelSpec, width=48, depth=3), training=training)


@dataclass(frozen=True)
class Step:
    arm: str
    recipe: dict[str, Any]
    said: int
    counted: int
    operations: dict[str, int]


def said_and_counted(each: PlannedArm, dataset: Dataset) -> tuple[int, int, dict[str, int]]:
    with Trainer(each, dataset) as trainer:
        trainer.prepare(2)
        with Launches() as launches:
            trainer._enqueue_step()
    said = step_work(each, dataset.shape, dataset.placement, one_pass=False).launches(fused=False)
    return said, launches.total, dict(launches.operations)


USUAL: list[dict[str, Any]] = [
    {"depth": depth, "bias": bias, "optimizer": optimizer, "update": update}
    for depth in (2, 3)
    for bias in (False, True)
    for optimizer in ("sgd", "adamw")
    for update in ("overlapped", "after")
]
UNUSUAL: list[dict[str, Any]] = [
    *({"depth": depth, "optimizer": "adamw"} for depth in (1, 8)),
    *({"activation": activation, "bias": True} for activation in ("gelu", "tanh", "identity")),
    *(
        {"dtype": "bfloat16", "optimizer": optimizer, "update": update}
        for optimizer in ("sgd", "adamw")
        for update in ("overlapped", "after")
    ),
    {"dtype": "float64", "momentum": 0.9},
    *({"activation_checkpointing": True, "depth": depth, "bias": True} for depth in (3, 4)),
    *({"loss": "cross_entropy", "dtype": dtype} for dtype in ("float32", "bfloat16", "float64")),
]


def count_all(p: int, recipes: Sequence[dict[str, Any]]) -> list[Step]:
    """Runs on every rank."""
    return [
        Step(arm.name, recipe, *said_and_counted(planned(arm, **recipe), rows(recipe.get("loss", SQUARES))))
        for arm in [*every_arm(p), *dtensor_arms(p)]
        for recipe in recipes
    ]


@pytest.mark.parametrize(
    ("p", "recipes"), [(1, USUAL), (1, UNUSUAL), (2, USUAL), (2, UNUSUAL), (3, USUAL[8:10])]
)
def test_every_layout_and_recipe_launches_what_the_formula_says(
    p: int, recipes: Sequence[dict[str, Any]]
) -> None:
    """Exactly, on the rank that launches most: ranks between the first and the last move ghosts about."""
    for steps in zip(*run_ranks(p, count_all, p, recipes), strict=True):
        most = max(steps, key=lambda step: step.counted)
        assert most.said == most.counted, most


class _Kernel:
    """Stands for one of `update_kernels`, which run on CUDA only."""

    def __init__(self, launched: list[str], name: str) -> None:
        self._launched, self._name = launched, name

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: self._launched.append(self._name)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("update", ["overlapped", "after"])
@pytest.mark.parametrize("width", [48, 736])
@pytest.mark.parametrize("bias", [False, True])
def test_with_one_pass_kernels_a_layer_is_one_launch_and_small_weights_at_the_end_are_torch_s(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, update: str, width: int, bias: bool
) -> None:
    launched: list[str] = []
    kernels = SimpleNamespace(BLOCK=1_024, sgd=_Kernel(launched, "sgd"), adamw=_Kernel(launched, "adamw"))
    monkeypatch.setattr(optimizers, "_kernels", lambda _: kernels)
    each = planned(
        DenseArm(name="dense"), width=width, bias=bias, dtype="bfloat16", optimizer=optimizer, update=update
    )
    with Trainer(each, rows(SQUARES)) as trainer:
        trainer.prepare(1)
        launched.clear()
        with Launches() as launches:
            trainer._enqueue_step()
    dataset = rows(SQUARES)
    said = step_work(each, dataset.shape, dataset.placement, one_pass=True).launches()
    assert said == launches.total + len(launched)


def test_a_compiled_arm_updates_at_the_end() -> None:
    compiled = planned(TensorArm(name="compiled", implementation="dtensor", compiled=True, world_size=2))
    plain = planned(TensorArm(name="plain", implementation="dtensor", world_size=2), update="after")
    shape = rows(SQUARES).shape
    assert step_work(compiled, shape, "split").launches() == step_work(plain, shape, "split").launches()


def test_the_fused_exchange_needs_no_copies_of_ghosts() -> None:
    phantom = planned(PhantomArm(name="phantom", ghosts=2, world_size=4))
    work = step_work(phantom, rows(SQUARES).shape, "split")
    # Of 3 layers, each one copy forward, a copy and a fill backward.
    assert work.launches(fused=False) - work.launches() == 3 * 3
