"""What an experiment is: the one set of models that service, client, job and researcher share.

A spec is written by a user in JSON or YAML; `load_spec` parses either. Fields that stand alone are
checked here. What only makes sense together (shapes, memory, controls) is checked by `checks.py`
once `plan.py` has resolved every arm. No torch is imported here.

Letters as in the papers: n width, p world size, k ghosts per rank, b batch, L depth, m = n / p.
"""

from phantom_core.spec.arms import Arm, BlockDiagonalArm, DenseArm, LowRankArm, PhantomArm, TensorArm
from phantom_core.spec.experiment import MAX_ARMS, ExperimentSpec, load_spec
from phantom_core.spec.fields import Name, SpecModel, TagKey, TagValue
from phantom_core.spec.measurement import MAX_ROUNDS, GpuScope, MeasurementSpec
from phantom_core.spec.model import MAX_WIDTH, Activation, Dtype, ModelOverrides, ModelSpec
from phantom_core.spec.resources import ResourceSpec
from phantom_core.spec.stop_rules import (
    HardLimits,
    StopAtJoules,
    StopAtSeconds,
    StopAtSteps,
    StopAtTargetLoss,
    StopRule,
)
from phantom_core.spec.tasks import DigitsTask, FeaturePlacement, FileTask, FlightsTask, Task, TeacherTask
from phantom_core.spec.training import Schedule, TrainingOverrides, TrainingSpec, UpdateTiming

__all__ = [
    "MAX_ARMS",
    "MAX_ROUNDS",
    "MAX_WIDTH",
    "Activation",
    "Arm",
    "BlockDiagonalArm",
    "DenseArm",
    "DigitsTask",
    "Dtype",
    "ExperimentSpec",
    "FeaturePlacement",
    "FileTask",
    "FlightsTask",
    "GpuScope",
    "HardLimits",
    "LowRankArm",
    "MeasurementSpec",
    "ModelOverrides",
    "ModelSpec",
    "Name",
    "PhantomArm",
    "ResourceSpec",
    "Schedule",
    "SpecModel",
    "StopAtJoules",
    "StopAtSeconds",
    "StopAtSteps",
    "StopAtTargetLoss",
    "StopRule",
    "TagKey",
    "TagValue",
    "Task",
    "TeacherTask",
    "TensorArm",
    "TrainingOverrides",
    "TrainingSpec",
    "UpdateTiming",
    "load_spec",
]
