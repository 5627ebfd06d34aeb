"""How many features and outputs a task has, and which loss it is judged by, without loading its data."""

from typing import Literal

from phantom_core.spec import DigitsTask, FileTask, FlightsTask, SpecModel, Task, TeacherTask

FLIGHTS_FEATURES = 128
"""Columns that `tasks` makes of a flight; a test holds the two together."""


class TaskShape(SpecModel):
    """What a model needs to know of a task."""

    features: int
    """Numbers per row that go in."""
    outputs: int
    """Numbers per row that come out: targets, or classes."""
    loss: Literal["mean_squared_error", "cross_entropy"]
    """The loss trained and evaluated on: a mean over rows (and outputs), cross-entropy in nats."""


def task_shape(task: Task) -> TaskShape:
    """The shape of a task."""
    match task:
        case TeacherTask():
            return TaskShape(features=task.features, outputs=task.outputs, loss="mean_squared_error")
        case DigitsTask():
            return TaskShape(features=64, outputs=10, loss="cross_entropy")
        case FlightsTask():
            return TaskShape(features=FLIGHTS_FEATURES, outputs=2, loss="cross_entropy")
        case FileTask():
            features = task.feature_count or len(task.features)
            if task.target_kind == "classification":
                return TaskShape(features=features, outputs=task.classes or 2, loss="cross_entropy")
            return TaskShape(features=features, outputs=1, loss="mean_squared_error")
