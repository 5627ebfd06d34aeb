"""PyTorch's own tensor parallelism trains the very model that the native tensor arm trains."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.layouts import LayoutError
from phantom_core.layouts.local_part import local_part
from phantom_core.plan import PlannedArm
from phantom_core.spec import ModelSpec, StopAtSteps, TeacherTask, TensorArm, TrainingSpec
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks

TASK = TeacherTask(features=24, outputs=3, latents=8, teacher_width=8, train_rows=96, validation_rows=41)
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Case:
    form: str = "column_row"
    dtype: str = "float64"
    depth: int = 3
    optimizer: str = "adamw"
    bias: bool = True
    compiled: bool = False
    checkpointing: bool = False


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    evaluation: float
    bytes_sent: int | None
    parameters: int
    state: dict[str, torch.Tensor]


def train(case: Case, implementation: str, group: Any = None, p: int | None = None) -> Trained:
    dtensor = implementation == "dtensor"
    planned = PlannedArm(
        arm=TensorArm(
            name="t",
            world_size=p or dist.get_world_size(),
            form=case.form,
            implementation=implementation,
            compiled=case.compiled and dtensor,
        ),
        model=ModelSpec(width=24, depth=case.depth, dtype=case.dtype, bias=case.bias),
        training=TrainingSpec(
            batch_size=16,
            learning_rate=0.01,
            optimizer=case.optimizer,
            momentum=0.0 if case.optimizer == "adamw" else 0.9,
            activation_checkpointing=case.checkpointing and dtensor,
            stop=StopAtSteps(steps=10),
        ),
    )
    with Trainer(planned, load_task(TASK), group=group, seed=2) as trainer:
        trainer.prepare(1)
        trainer.run(10)
        return Trained(
            trainer.losses().tolist(),
            trainer.evaluate(),
            trainer.bytes_sent_per_step,
            trainer.parameters_total,
            trainer.state_dict()["tensors"],
        )


CASES = [
    *(Case(form, dtype) for form in ("gather", "column_row") for dtype in TOLERANCES),
    Case(depth=2, optimizer="sgd", bias=False),
    Case(depth=1, optimizer="sgd"),
    Case(depth=4, checkpointing=True),
]


def both(cases: list[Case]) -> list[tuple[Trained, Trained]]:
    return [(train(case, "native"), train(case, "dtensor")) for case in cases]


@pytest.mark.parametrize("p", [1, 2, 4])
def test_dtensor_s_arm_has_the_losses_weights_and_bytes_of_the_native_one(p: int) -> None:
    for rank in run_ranks(p, both, CASES):
        for case, (native, dtensor) in zip(CASES, rank, strict=True):
            np.testing.assert_allclose(
                dtensor.losses, native.losses, rtol=TOLERANCES[case.dtype], err_msg=str(case)
            )
            assert dtensor.evaluation == pytest.approx(native.evaluation, rel=TOLERANCES[case.dtype])
            assert dtensor.losses[-1] < dtensor.losses[0]
            assert dtensor.parameters == native.parameters
            if not case.checkpointing:
                assert dtensor.bytes_sent == native.bytes_sent
            if case.dtype != "bfloat16":
                for name, tensor in native.state.items():
                    if tensor.shape == dtensor.state[name].shape:  # a scattered row's bias is whole here
                        np.testing.assert_allclose(dtensor.state[name], tensor, rtol=1e-3, atol=1e-5)


def compiled_and_native() -> list[tuple[Trained, Trained]]:
    # The compiler looks at things that warn, and imports modules that do.
    warnings.simplefilter("ignore")
    cases = [Case(dtype="float32", compiled=True), Case(dtype="float32", compiled=True, checkpointing=True)]
    return both(cases)


def test_compiled_layers_train_the_same_model() -> None:
    for rank in run_ranks(2, compiled_and_native):
        for native, compiled in rank:
            np.testing.assert_allclose(compiled.losses, native.losses, rtol=2e-5)
            assert compiled.evaluation == pytest.approx(native.evaluation, rel=2e-5)
        assert rank[0][1].bytes_sent == rank[0][0].bytes_sent


def in_a_subgroup_and_out_of_shape() -> Trained | None:
    from phantom_core.layouts.dtensor import DTensorLinear

    with pytest.raises(LayoutError, match="out_features = 13 can't be split over 3 ranks; use 12 or 15"):
        DTensorLinear(12, 13, "column")
    with pytest.raises(LayoutError, match="in_features = 13 can't be split over 3 ranks; use 12 or 15"):
        DTensorLinear(13, 12, "row")
    layer = DTensorLinear(12, 6, "row")
    assert layer.dense_equivalent().shape == (6, 12)
    assert local_part(layer.linear.weight).shape == (6, 4)
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    assert isinstance(group, dist.ProcessGroup)
    return train(Case(), "dtensor", Communicator(group), 2)


def test_it_runs_in_a_subgroup_and_refuses_sizes_that_ranks_do_not_divide() -> None:
    outside, *inside = run_ranks(3, in_a_subgroup_and_out_of_shape)
    assert outside is None
    ((_, whole), *_), _ = run_ranks(2, both, [Case()])
    for told in inside:
        assert told is not None
        assert told.losses == whole.losses
