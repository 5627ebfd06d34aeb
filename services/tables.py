"""Tables: what was asked, and what became of it. Measured rows are in `measured_tables.py`.

Runs and devices have a short counted key beside their id, since millions of measured rows repeat it.
A float that isn't finite is stored as NULL with its name (`nan`, `inf`, `-inf`) beside it.
"""

from services.columns import Base, table
from services.experiment_tables import Arm, Experiment, ExperimentAttempt, ExperimentTag
from services.job_log_tables import JobLog, JobLogPart
from services.measured_tables import BoardStateBlock, Device, MetricBlock, PowerSample, Window
from services.run_tables import Attempt, Run
from services.service_tables import (
    ApiKey,
    Comparison,
    Event,
    Heartbeat,
    IdempotencyKey,
    QueueTurn,
    Switch,
    WorkerGroup,
)

__all__ = [
    "ApiKey",
    "Arm",
    "Attempt",
    "Base",
    "BoardStateBlock",
    "Comparison",
    "Device",
    "Event",
    "Experiment",
    "ExperimentAttempt",
    "ExperimentTag",
    "Heartbeat",
    "IdempotencyKey",
    "JobLog",
    "JobLogPart",
    "MetricBlock",
    "PowerSample",
    "QueueTurn",
    "Run",
    "Switch",
    "Window",
    "WorkerGroup",
    "table",
]
