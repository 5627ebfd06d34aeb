"""Training an arm: batches, the step and its CUDA graph, the optimizer, evaluation.

`Trainer` is what a worker drives; when to stop is `phantom_core.stopping`'s business.
"""

from phantom_core.training.batches import BatchSizeError, RowOrder
from phantom_core.training.schedules import learning_rate, schedule_factor
from phantom_core.training.trainer import Trainer

__all__ = ["BatchSizeError", "RowOrder", "Trainer", "learning_rate", "schedule_factor"]
