"""How long a rank's work may rightly take before nobody believes in it any more: ten times what is known of it."""

from collections.abc import Mapping

from phantom_core.protocol import StepMode

TIMES = 10
"""Patience: boards that are throttled or shared make steps a few times longer, and disks are slower at times."""
UNKNOWN_S = 1_800.0
"""Where nothing was measured yet: building, compiling and capturing a deep arm takes minutes."""
MOST_IN_FLIGHT: Mapping[StepMode, int] = {"graph": 1_024, "eager": 64}
"""Steps at most that a device still has to make when a rank has given it all of them: CUDA takes about a thousand
launches before whoever launches has to wait. A replayed graph is one; a step without is some dozens."""
SLOWEST_DISK_BYTES_PER_S = 1e8
"""What any disk for checkpoints is taken to read and write."""


def for_steps(steps: int, step_s: float | None, mode: StepMode) -> float:
    """Seconds without another step given to the device, in a window of steps.

    Args:
        steps: In the window.
        step_s: Seconds of one, as far as was measured; None if it was not.
        mode: How steps are made.
    """
    return UNKNOWN_S if step_s is None else TIMES * min(steps, MOST_IN_FLIGHT[mode]) * step_s


def for_rows(rows: int, batch_size: int, step_s: float | None) -> float:
    """Seconds of an evaluation: a row's forward pass is a third of its share of a step.

    Args:
        rows: Evaluated.
        batch_size: Rows of a step.
        step_s: Seconds of one, as far as was measured; None if it was not.
    """
    return UNKNOWN_S if step_s is None else TIMES * rows / batch_size * step_s


def for_bytes(size: int) -> float:
    """Seconds of writing or reading a file.

    Args:
        size: Its bytes.
    """
    return TIMES * size / SLOWEST_DISK_BYTES_PER_S
