"""Made-up results of `layers.py` and `attribution.py`, shaped as theirs."""

from typing import Any

from benchmarks.layer_rows import summarise

Row = dict[str, Any]
HEAD: Row = {
    "cards": 4,
    "card": "Board",
    "driver": "1.2",
    "torch": "2.11",
    "date": "2026-01-02T03:04:05+00:00",
    "command": "torchrun --nproc-per-node 4 -m benchmarks.layers",
}


PAIRS = [
    {"round": number, "ms_per_step": 2.1 + drift, "silent_ms_per_step": 2.0 + drift + noise}
    for number, (drift, noise) in enumerate(((0.0, 0.01), (0.02, -0.01), (-0.01, 0.0)))
]
"""Phantom with and without communication: 0.1 ms apart, give or take 0.01, whatever both drift."""


def arm(name: str, ms: float, joules: float | None, **changes: Any) -> Row:
    """An arm with three rounds around these figures."""
    rounds = [
        {
            "group": "g",
            "round": number,
            "position": 0,
            "ms_per_step": ms * factor,
            "j_per_step": joules and joules * factor,
            "j_per_step_bound": joules and 0.01 * joules,
            "window_s": 1.0,
            "method": "nvml.counter (ticks)" if joules else None,
            "reason": None if joules else "no counter",
        }
        for number, factor in enumerate((0.99, 1.0, 1.01))
    ]
    row: Row = {
        "measured": "arm",
        "n": 16384,
        "depth": 8,
        "k": 64,
        "b": 1024,
        "p": 4,
        "dtype": "bfloat16",
        "arm": name,
        "strategy": name.split()[0],
        "transport": "symmetric_memory",
        "reason": None,
        "step_mode": "graph",
        "peak_memory_bytes": 8_500_000_000,
        "floor": {"gemm_ms": 1.5, "memory_ms": 1.0, "link_ms": 0.1, "step_ms": 1.5, "bound": "gemm"},
        "prediction": {"reason": "none"},
        "rounds": rounds,
    }
    return row | changes


def layers() -> Row:
    """Column/row, phantom twice (once with more ghosts), and an arm that did not fit."""
    setting = {
        "measured": "setting",
        "rounds": 3,
        "ceilings": [{"load": "gemm", "flops_per_s": 6e14}, {"load": "gemm burst", "flops_per_s": 7e14}],
    }
    rows = [
        arm("tensor column/row", 7.0, 20.0, silent={"ms_per_step": 6.3}),
        arm("phantom", 2.1, 5.8, silent={"pairs": PAIRS}),
        arm("low-rank", 2.0, None),
        arm("tensor gather", 0.0, None, rounds=[], reason="needs about 90 GB"),
    ]
    more_ghosts = [arm("tensor column/row", 7.0, 20.0, k=256), arm("phantom", 2.8, 7.8, k=256)]
    for each in (rows, more_ghosts):
        summarise(each)
    return HEAD | {"rows": [setting, *rows, *more_ghosts]}
