"""What every message is made of: the models' manners, and the words that more than one of them uses."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from phantom_core.described import describe

Phase = Literal["idle_before", "setup", "training", "evaluation", "steady", "waiting", "idle_after"]
Method = Literal["nvml.counter", "nvml.power", "rapl", "estimate", "amdsmi.counter"]
Scope = Literal["gpu", "module", "package", "package+dram", "process"]
StepMode = Literal["eager", "graph"]
Exchange = Literal["symmetric_memory", "nccl", "gloo"]
RunOutcome = Literal["succeeded", "diverged", "failed", "cancelled"]


class Wire(BaseModel):
    """Frozen; unknown fields refused; non-finite floats kept."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="strings", json_schema_extra=describe
    )


class Reason(StrEnum):
    """Why a run or an experiment ended as it did, or a number is missing."""

    NON_FINITE_LOSS = "non_finite_loss"
    OUT_OF_MEMORY = "out_of_memory"
    ARM_ERROR = "arm_error"
    TASK_ERROR = "task_error"
    CANCELLED_BY_USER = "cancelled_by_user"
    WORKER_LOST = "worker_lost"
    GROUP_LOST = "group_lost"
    JOB_FAILED = "job_failed"
    JOB_STOPPED = "job_stopped"
    JOB_UNKNOWN = "job_unknown"
    SERVICE_ENDED = "service_ended"
    SUBMIT_FAILED = "submit_failed"
    NO_CAPACITY = "no_capacity"
    SERVICE_UNREACHED = "service_unreached"
    SCHEDULING_DEADLINE = "scheduling_deadline"
    SILENCE_DEADLINE = "silence_deadline"
    NO_PROGRESS = "no_progress"
    DEADLINE = "deadline"
    ALL_RUNS_FAILED = "all_runs_failed"
    ENERGY_UNKNOWN = "energy_unknown"
    PRECISION_REACHED = "precision_reached"
    NOTHING_TO_COMPARE = "nothing_to_compare"
