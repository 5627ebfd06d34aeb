"""What job and service say to each other: an assignment one way, events the other. Torch-free.

Every event carries `(subject_id, attempt, source, seq)`; the service stores each once, however often
it is sent. Times are UTC. Floats may be NaN or infinite and travel as the strings `NaN`, `Infinity`
and `-Infinity`, since JSON has no numbers for them.
"""

from phantom_core.protocol.assignments import (
    CHECKPOINT_FOLDER,
    JOB_LOG_LINE,
    AssignedRun,
    Assignment,
    JobVariable,
    MadeRun,
    ServiceAddresses,
)
from phantom_core.protocol.devices import BoardState, DeviceInfo, RankInfo
from phantom_core.protocol.events import EVENT_ADAPTER, SAMPLER_SOURCE, Event, EventBatch, Payload
from phantom_core.protocol.experiment_events import Alive, ExperimentFinished, ExperimentStarted, Progress
from phantom_core.protocol.groups import GroupEnded, NextAnswer, NextRequest
from phantom_core.protocol.run_events import Carried, RunFinished, RunSkipped, RunStarted, Window
from phantom_core.protocol.series import BoardStates, MetricPoint, Metrics, PowerSamples, SamplerEnded
from phantom_core.protocol.words import Exchange, Method, Phase, Reason, RunOutcome, Scope, StepMode, Wire

__all__ = [
    "CHECKPOINT_FOLDER",
    "EVENT_ADAPTER",
    "JOB_LOG_LINE",
    "SAMPLER_SOURCE",
    "Alive",
    "AssignedRun",
    "Assignment",
    "BoardState",
    "BoardStates",
    "Carried",
    "DeviceInfo",
    "Event",
    "EventBatch",
    "Exchange",
    "ExperimentFinished",
    "ExperimentStarted",
    "GroupEnded",
    "JobVariable",
    "MadeRun",
    "Method",
    "MetricPoint",
    "Metrics",
    "NextAnswer",
    "NextRequest",
    "Payload",
    "Phase",
    "PowerSamples",
    "Progress",
    "RankInfo",
    "Reason",
    "RunFinished",
    "RunOutcome",
    "RunSkipped",
    "RunStarted",
    "SamplerEnded",
    "Scope",
    "ServiceAddresses",
    "StepMode",
    "Window",
    "Wire",
]
