"""The teacher task: regression on a fixed random network's answers."""

import math

import numpy as np
import numpy.typing as npt

from phantom_core.spec import TeacherTask
from phantom_core.task_shapes import task_shape
from phantom_core.tasks.dataset import Dataset, FloatArray, refuse_oversize
from phantom_core.tasks.exact import Deviates, FloatTable, moments, on_grid

_LEAK = 1 / 16
"""Slope of the teacher's activation below 0: a power of two keeps it exact, and no unit can be dead."""
_BLOCK_VALUES = 2**19
"""Numbers made at once: a few buffers of this size stay in the processor's cache."""


def load_teacher(task: TeacherTask) -> Dataset:
    """Makes the task: z latents, x = mix(z) + noise, y = teacher(z).

    Feature i mixes only the latents in a window around i / F of them (an eighth of all, in a ring, with
    random weights), so a rank that holds F / p neighbouring columns sees about 1 / p + 1 / 8 of the
    latents, while the teacher is dense in all of them: with `split` placement no rank can answer alone.

    Features have unit variance. Every output is standardised by the training rows' mean and standard
    deviation, so a mean squared error of 1 is what predicting the mean gives. The result depends on the
    task alone, to the bit, on every machine (see `exact`).

    Args:
        task: Sizes, noise and seed.

    Returns:
        Features (rows, F) float32 and targets (rows, outputs) float32.

    Raises:
        TaskError: The tables would be too large.
    """
    rows = task.train_rows + task.validation_rows
    refuse_oversize("teacher features", rows, task.features)
    refuse_oversize("teacher targets", rows, task.outputs)
    refuse_oversize("teacher latents and hidden layer", rows, task.latents + task.teacher_width)
    latents = on_grid(Deviates(task.seed, "teacher latents").draw(rows, task.latents))
    features = _features(task, latents)
    targets = _standardised(_answers(task, latents), task.train_rows)
    train = task.train_rows
    return Dataset(
        train_features=features[:train],
        train_targets=targets[:train],
        validation_features=features[train:],
        validation_targets=targets[train:],
        shape=task_shape(task),
        placement=task.feature_placement,
    )


def mixing_weights(task: TeacherTask) -> FloatTable:
    """The mix (latents, F): a column's few weights lie on the grid, their squares sum to nearly 1."""
    window = mixing_window(task.latents)
    draws = on_grid(_nonzero(Deviates(task.seed, "teacher mix").draw(task.features, window)))
    norms = np.sqrt((draws * draws).sum(axis=1, keepdims=True))
    first = np.arange(task.features) * task.latents // task.features
    sources = (first[:, None] + np.arange(window)) % task.latents
    weights = np.zeros((task.features, task.latents))
    np.put_along_axis(weights, sources, on_grid(draws / norms), axis=1)
    return np.ascontiguousarray(weights.T)


def mixing_window(latents: int) -> int:
    """How many neighbouring latents a feature mixes: an eighth, at least one."""
    return max(1, latents // 8)


def _features(task: TeacherTask, latents: FloatTable) -> FloatArray:
    weights = mixing_weights(task)
    noise = Deviates(task.seed, "teacher noise")
    scale = np.float32(1 / math.sqrt(1 + task.noise_std**2))
    features: FloatArray = np.empty((len(latents), task.features), dtype=np.float32)
    # Even, so that no block but the last draws an odd number of deviates: the noise doesn't depend on the
    # block size.
    step = max(2, _BLOCK_VALUES // task.features // 2 * 2)
    for start in range(0, len(latents), step):
        block = features[start : start + step]
        block[:] = latents[start : start + step] @ weights
        if task.noise_std:
            deviates = noise.draw(*block.shape)
            deviates *= np.float32(task.noise_std)
            block += deviates
        block *= scale
    return features


def _answers(task: TeacherTask, latents: FloatTable) -> FloatTable:
    """The teacher's outputs (rows, outputs) on the grid: hidden layers of leaky ReLU, then a linear layer."""
    deviates = Deviates(task.seed, "teacher weights")
    hidden = latents
    for _ in range(task.teacher_depth):
        hidden = _rescaled(hidden @ _weights(deviates, hidden.shape[1], task.teacher_width))
        hidden = on_grid(np.maximum(hidden, _LEAK * hidden))
    return _rescaled(hidden @ _weights(deviates, hidden.shape[1], task.outputs))


def _weights(deviates: Deviates, inputs: int, outputs: int) -> FloatTable:
    return on_grid(_nonzero(deviates.draw(inputs, outputs)) / np.float32(math.sqrt(inputs)))


def _nonzero(draws: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """With 1 for 0, which is one draw in 400 and would cut the only connection of a width-1 layer."""
    return np.where(draws == 0, np.float32(1), draws)


def _rescaled(values: FloatTable) -> FloatTable:
    """Times the power of two that brings the spread near 1, so that depth neither fades nor blows up."""
    spread = math.sqrt(float(moments(on_grid(values))[1].mean()))
    return on_grid(np.ldexp(values, -math.frexp(spread)[1])) if spread else on_grid(values)


def _standardised(answers: FloatTable, train_rows: int) -> FloatArray:
    mean, variance = moments(answers[:train_rows])
    std = np.sqrt(np.where(variance > 0, variance, 1.0))
    return ((answers - mean) / std).astype(np.float32)
