"""The learning rate of every step, as numbers that are worked out on the host and read on the device."""

import math

from phantom_core.spec import Schedule, TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Learning rate of the step-th optimizer step, counted from 0."""
    return training.learning_rate * schedule_factor(training.schedule, step)


def schedule_factor(schedule: Schedule, step: int) -> float:
    """What the peak learning rate is multiplied by in the step-th optimizer step, counted from 0.

    Over w warm-up steps the factor is (step + 1) / w, so no step is wasted on a rate of 0. After them, with
    t = (step - w) / decay_steps up to 1 and final fraction f: 1 - (1 - f) t (linear), or
    f + (1 - f) (1 + cos(pi t)) / 2 (cosine).
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    t = min(1.0, (step - schedule.warmup_steps) / schedule.decay_steps)
    final = schedule.final_fraction
    match schedule.kind:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - (1.0 - final) * t
        case "cosine":
            return final + (1.0 - final) * (1.0 + math.cos(math.pi * t)) / 2
