"""The digits task: scikit-learn's 1,797 handwritten digits, which are installed with the package."""

import numpy as np
from sklearn.datasets import load_digits as sklearn_digits

from phantom_core.spec import DigitsTask
from phantom_core.task_shapes import task_shape
from phantom_core.tasks.dataset import Dataset, Scaling, split_rows


def load_digits(task: DigitsTask) -> Dataset:
    """Splits the images at random and standardises the 64 pixels by the training rows.

    Pixels that are blank in every training image become 0 there.

    Args:
        task: Share kept for evaluation, and seed of the split.

    Returns:
        Features (rows, 64) float32 and classes (rows,) int64.

    Raises:
        TaskError: The split leaves no row to train on.
    """
    pixels, classes = sklearn_digits(return_X_y=True)
    train, validation = split_rows(len(pixels), task.validation_fraction, task.seed)
    scaling = Scaling.of(pixels[train])
    classes = classes.astype(np.int64)
    return Dataset(
        train_features=scaling.apply(pixels[train]),
        train_targets=classes[train],
        validation_features=scaling.apply(pixels[validation]),
        validation_targets=classes[validation],
        shape=task_shape(task),
        placement=task.feature_placement,
    )
