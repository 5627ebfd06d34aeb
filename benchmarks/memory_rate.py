"""The rate that no step's memory traffic exceeds, out of a run's ceilings."""

from collections.abc import Mapping
from typing import Any

MEMORY_BURST = "memory burst"
"""The load whose rate is that of the optimizer's pass over weights, reading and writing."""


def memory_rate(loads: Mapping[str, Mapping[str, Any]]) -> float:
    """Bytes per second of a copy or of the optimizer's pass, the faster: a copy alone flatters a step beside it.

    Args:
        loads: A run's ceilings by load.
    """
    return max(float(loads[name]["bytes_per_s"]) for name in ("memory", MEMORY_BURST) if name in loads)
