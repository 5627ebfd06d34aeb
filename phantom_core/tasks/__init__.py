"""Data to learn from: a teacher network, digits, flights, or the user's own table.

`load_task` gives every task in one form, `Dataset`: numpy arrays that a trainer copies to its device once.
"""

from collections.abc import Sequence
from pathlib import Path

from phantom_core.spec import DigitsTask, FileTask, FlightsTask, Task, TeacherTask
from phantom_core.tasks.dataset import Dataset, TaskError
from phantom_core.tasks.roots import resolve_under_roots

__all__ = ["Dataset", "TaskError", "load_task", "resolve_under_roots"]


def load_task(task: Task, data_roots: Sequence[Path] = ()) -> Dataset:
    """Loads or makes a task's data; the same task gives the same rows in the same order on every rank.

    Args:
        task: What is learned.
        data_roots: Folders under which a `file` task's path may lie.

    Returns:
        Training and evaluation rows, standardised by the training rows.

    Raises:
        TaskError: The data can't be had or used; the message says what to change.
    """
    try:
        return _load(task, data_roots)
    except MemoryError as error:
        raise TaskError(
            f"the {task.kind} task's data don't fit in this host's memory; use fewer rows or columns"
        ) from error


def _load(task: Task, data_roots: Sequence[Path]) -> Dataset:
    # Each kind's module is imported when it is used: scikit-learn and pyarrow take a second each.
    match task:
        case TeacherTask():
            from phantom_core.tasks.teacher import load_teacher

            return load_teacher(task)
        case DigitsTask():
            from phantom_core.tasks.digits import load_digits

            return load_digits(task)
        case FlightsTask():
            from phantom_core.tasks.flights import load_flights

            return load_flights(task)
        case FileTask():
            from phantom_core.tasks.files import load_file

            return load_file(task, data_roots)
