"""What meters say of the same windows, and what beginning and ending a window costs, for `benchmarks/meters.py`."""

import importlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.meter_tools import Ghostwatt, Tool
from benchmarks.paired import paired_ratio
from benchmarks.sampler_cost import Load

OPEN_AT_ONCE = 100
"""Windows of each tool that are open together where it can."""
Row = dict[str, Any]


def agreement(
    ours: Ghostwatt, peers: Sequence[Tool], load: Load, windows: int, seconds: float
) -> Iterator[list[Row]]:
    """All tools around the same load, each the outermost in turn.

    Yields:
        One row for each peer, after every window.
    """
    tools: list[Tool] = [ours, *peers]
    energies_mj: dict[str, list[float | None]] = {tool.name: [] for tool in tools}
    bounds: list[float | None] = []
    for window in range(windows):
        order = [tools[(window + n) % len(tools)] for n in range(len(tools))]
        for tool in order:
            tool.begin(f"window {window}")
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            load.run(10)
        for tool in reversed(order):
            energies_mj[tool.name].append(tool.end(f"window {window}"))
        of_ours = energies_mj[ours.name][-1]
        bounds.append(ours.uncertainty_mj / of_ours if of_ours and ours.uncertainty_mj is not None else None)
        yield [
            _agreement_row(peer.name, energies_mj, energies_mj[ours.name], bounds, seconds) for peer in peers
        ]


def _agreement_row(
    peer: str,
    energies_mj: dict[str, list[float | None]],
    of_ours: list[float | None],
    bounds: list[float | None],
    seconds: float,
) -> Row:
    both = [
        (mine, other, bound) for mine, other, bound in zip(of_ours, energies_mj[peer], bounds, strict=True)
    ]
    compared = [
        (mine / other - 1, bound) for mine, other, bound in both if mine and other and bound is not None
    ]
    differences, known = [each for each, _ in compared], [bound for _, bound in compared]
    return {
        "measured": "agreement",
        "peer": peer,
        "windows_without_an_answer": len(both) - len(compared),
        "windows": len(compared),
        "window_s": seconds,
        "our_energy_mj": of_ours,
        "peer_energy_mj": energies_mj[peer],
        "mean_difference_percent": 100 * statistics.fmean(differences) if differences else None,
        "largest_difference_percent": 100 * max(map(abs, differences)) if differences else None,
        "our_bound_percent": 100 * statistics.fmean(known) if known else None,
    }


class _Costs:
    """Seconds that tools took to begin and end windows."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.begins: dict[str, list[float]] = {tool.name: [] for tool in tools}
        self.ends: dict[str, list[float]] = {tool.name: [] for tool in tools}

    def begin(self, tool: Tool, window: str) -> None:
        start_s = time.perf_counter()
        tool.begin(window)
        self.begins[tool.name].append(time.perf_counter() - start_s)

    def end(self, tool: Tool, window: str) -> None:
        start_s = time.perf_counter()
        tool.end(window)
        self.ends[tool.name].append(time.perf_counter() - start_s)

    def row(self, name: str, how: str) -> Row:
        row: Row = {"measured": "cost", "tool": name, "how": how, "windows": len(self.ends[name])}
        for edge, seconds in (("begin", self.begins[name]), ("end", self.ends[name])):
            row[f"{edge}_us_median"] = 1e6 * statistics.median(seconds)
            row[f"{edge}_us_p95"] = 1e6 * float(np.percentile(seconds, 95))
        return row

    def against(self, ours: str, peer: str, how: str) -> Row:
        """Our time over the peer's, window by window."""
        row: Row = {"measured": "cost ratio", "tool": ours, "peer": peer, "how": how}
        for edge, seconds in (("begin", self.begins), ("end", self.ends)):
            ratio = paired_ratio(seconds[ours], seconds[peer])
            row |= {f"{edge}_ratio": ratio.ratio, f"{edge}_ratio_95_percent": [ratio.low, ratio.high]}
        return row


def cost(
    ours: Tool, others: Sequence[Tool], windows: int, slow_windows: int, pause_s: float
) -> Iterator[list[Row]]:
    """What a window's begin and end cost each tool, without load; in turn, the order drawn by lot, all of them warm.

    Tools whose windows may overlap open a hundred in a tight loop, wait until the counter has moved, and close them in
    a tight loop. The others' windows come one after the other, and ours beside them.

    Args:
        ours: What others are compared with.
        others: The other tools.
        windows: How many of each tool that can have several open.
        slow_windows: How many of each tool that can't.
        pause_s: Seconds for the counter to move in.

    Yields:
        All rows so far.
    """
    quick = [ours, *(tool for tool in others if tool.overlaps)]
    costs = _Costs(quick)
    _warm_up(quick, pause_s)
    for first in range(0, windows, OPEN_AT_ONCE):
        names = [f"window {number}" for number in range(first, min(windows, first + OPEN_AT_ONCE))]
        for name in names:
            for tool in random.sample(quick, len(quick)):
                costs.begin(tool, name)
        time.sleep(pause_s)
        for name in names:
            for tool in random.sample(quick, len(quick)):
                costs.end(tool, name)
    rows = _rows(costs, quick, "in a tight loop")
    yield rows
    for slow in [tool for tool in others if not tool.overlaps]:
        pair = [ours, slow]
        costs = _Costs(pair)
        _warm_up(pair, pause_s)
        for number in range(slow_windows):
            for tool in random.sample(pair, 2):
                costs.begin(tool, f"alone {number}")
                time.sleep(pause_s)
                costs.end(tool, f"alone {number}")
        rows = [*rows, *_rows(costs, pair, "one at a time")]
        yield rows


def turns(ours: Tool, peers: Sequence[Tool], pairs: int, pause_s: float) -> Iterator[list[Row]]:
    """What a training window and the evaluation after it cost together, as jobs have them; in turn, drawn by lot.

    Args:
        ours: What others are compared with.
        peers: The other tools.
        pairs: How often each.
        pause_s: Seconds for the counter to move in, inside every window.

    Yields:
        All rows so far, after each peer.
    """
    rows: list[Row] = []
    for peer in peers:
        tools = [ours, peer]
        seconds: dict[str, list[float]] = {tool.name: [] for tool in tools}
        for tool in tools:
            tool.in_turn(pause_s)
        for _ in range(pairs):
            for tool in random.sample(tools, len(tools)):
                seconds[tool.name].append(tool.in_turn(pause_s))
        rows += [
            {
                "measured": "turn",
                "tool": name,
                "beside": peer.name,
                "pairs": pairs,
                "us_median": 1e6 * statistics.median(taken),
                "us_p95": 1e6 * float(np.percentile(taken, 95)),
            }
            for name, taken in seconds.items()
        ]
        ratio = paired_ratio(seconds[ours.name], seconds[peer.name])
        rows.append(
            {
                "measured": "turn ratio",
                "tool": ours.name,
                "peer": peer.name,
                "ratio": ratio.ratio,
                "ratio_95_percent": [ratio.low, ratio.high],
            }
        )
        yield rows


def _warm_up(tools: Sequence[Tool], pause_s: float) -> None:
    for tool in tools:
        tool.begin("warm-up")
        time.sleep(pause_s)
        tool.end("warm-up")


def _rows(costs: _Costs, tools: Sequence[Tool], how: str) -> list[Row]:
    ours, *others = [tool.name for tool in tools]
    return [
        *(costs.row(name, how) for name in (ours, *others)),
        *(costs.against(ours, name, how) for name in others),
    ]


def call_cost(uuid: str, calls: int) -> Row:
    """Microseconds of the driver's own calls: what no tool can do without, and what a narrower bound adds to it."""
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        total, power = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, pynvml.NVML_FI_DEV_POWER_INSTANT
        asked: dict[str, Callable[[], object]] = {
            "counter": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
            "power": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [power]),
            "both_at_once": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [total, power]),
        }
        seconds: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(calls):
            for name in random.sample(sorted(asked), len(asked)):
                start_s = time.perf_counter()
                asked[name]()
                seconds[name].append(time.perf_counter() - start_s)
    finally:
        pynvml.nvmlShutdown()
    medians = {f"{name}_us_median": 1e6 * statistics.median(taken) for name, taken in seconds.items()}
    return {"measured": "calls", "calls": calls, **medians}


def cost_seconds(windows: int, slow_windows: int, pause_s: float, tools: int, call_s: float) -> float:
    """About how long `cost` takes, given how long one call of the driver does."""
    loops = -(-windows // OPEN_AT_ONCE)
    return loops * pause_s + 2 * windows * (tools + 1) * call_s + 2 * slow_windows * (pause_s + 0.02)
