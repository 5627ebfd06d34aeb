"""Ghostwatt's meter against Zeus and CodeCarbon: the same windows, what a window costs, what sampling costs.

    python -m benchmarks.meters [--out FILE] [--windows 6] [--seconds 10] [--repeats 100] [--blocks 20]

Needs `pip install zeus codecarbon` for the comparison; a peer that is missing is left out and named. On a
host without an NVIDIA driver it runs against the tests' scripted board (a C compiler is needed).

- agreement: windows around one load, metered by Ghostwatt and one peer at once, each the outer in turn.
- cost: begin and end of an empty window, tools in a new order each time.
- sampling: time of a load's steps with the 10 Hz sampler running in another process and without, in turn.
"""

import argparse
import contextlib
import importlib.metadata
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch

from benchmarks.meter_tools import CodeCarbon, Ghostwatt, Tool, Zeus
from benchmarks.record import record
from phantom_core.meters.base import MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.nvml_lookup import list_boards
from phantom_core.meters.sampling import PowerSampler, Sample

STUB_VARIABLE = "GHOSTWATT_NVML_STUB"
STUB_WATTS = ((0.0, 90.0), (5.0, 90.0), (6.0, 520.0), (3_600.0, 560.0))
"""Corners (seconds, watts) of the scripted board's power."""
CODECARBON_REPEATS = 15
"""Its windows take so long that fewer must do."""


def main() -> None:
    """Runs everything and writes one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "meters.json")
    parser.add_argument("--windows", type=int, default=6, help="windows per peer")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--repeats", type=int, default=100, help="empty windows per tool")
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks with and without the sampler")
    wanted = parser.parse_args()
    try:
        boards = list_boards()
    except MeterUnavailable as error:
        if STUB_VARIABLE in os.environ:
            raise SystemExit(f"the scripted board can't be opened either: {error}") from error
        run_on_scripted_board()
    board, cuda_index = boards[0], 0
    if torch.cuda.is_available():
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        board = next(each for each in boards if each.uuid == uuid)
    ours = Ghostwatt(board.uuid)
    peers, missing = [], {}
    for make in (lambda: Zeus(cuda_index), lambda: CodeCarbon(board.index)):
        try:
            peers.append(make())
        except ImportError as error:
            missing[str(error.name)] = f"not installed: {error}"
    step = load_step()
    rows: list[dict[str, Any]] = [{"measured": "setting", **setting(ours, board.name, missing)}]
    rows += [agreement(ours, peer, step, wanted.windows, wanted.seconds) for peer in peers]
    rows += cost([ours, *peers], wanted.repeats)
    rows.append(sampling(board.uuid, step, wanted.blocks))
    for tool in (ours, *peers):
        tool.close()
    for row in rows:
        print(row)
    record(wanted.out, rows, torch.device("cuda", 0) if torch.cuda.is_available() else None)


def run_on_scripted_board() -> None:
    """Starts this benchmark again where the tests' stub is found instead of the driver; does not return."""
    from tests.nvml_stub.harness import StubBoard, StubScript, build_stub

    folder = Path(tempfile.mkdtemp(prefix="ghostwatt-stub-"))
    script = StubScript(boards=(StubBoard(power=STUB_WATTS),))
    environment = {**os.environ, **build_stub(folder).environment(script, folder / "script")}
    # CodeCarbon takes a host for one with NVIDIA boards only if this program runs.
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o700)
    environment["PATH"] = f"{folder}:{environment.get('PATH', '')}"
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.meters", *sys.argv[1:]], environment)


def setting(ours: Ghostwatt, board: str | None, missing: dict[str, str]) -> dict[str, Any]:
    """What the numbers below depend on."""
    versions = {}
    for package in ("zeus", "codecarbon", "nvidia-ml-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "board": board,
        "scripted_board": STUB_VARIABLE in os.environ,
        "method": ours.meter.device.method,
        "update_period_s": getattr(ours.meter, "update_period_s", None),
        "versions": versions,
        "left_out": missing,
    }


def load_step() -> Callable[[], None]:
    """One step of work: a matrix product on the board, waited for, or a smaller one on the processor."""
    if torch.cuda.is_available():
        a = torch.randn(8_192, 8_192, device="cuda", dtype=torch.bfloat16)

        def on_board() -> None:
            torch.mm(a, a)
            torch.cuda.synchronize()

        return on_board
    b = torch.randn(512, 512)

    def on_processor() -> None:
        torch.mm(b, b)

    return on_processor


def agreement(
    ours: Ghostwatt, peer: Tool, step: Callable[[], None], windows: int, seconds: float
) -> dict[str, Any]:
    """Both tools around the same load."""
    pairs, bounds = [], []
    for window in range(windows):
        outer, inner = (ours, peer) if window % 2 else (peer, ours)
        outer.begin()
        inner.begin()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            step()
        inner_mj = inner.end()
        outer_mj = outer.end()
        ours_mj, peer_mj = (outer_mj, inner_mj) if window % 2 else (inner_mj, outer_mj)
        if ours_mj and peer_mj and ours.uncertainty_mj is not None:
            pairs.append(ours_mj / peer_mj - 1)
            bounds.append(ours.uncertainty_mj / ours_mj)
    return {
        "measured": "agreement",
        "peer": peer.name,
        "windows_without_an_answer": windows - len(pairs),
        "windows": len(pairs),
        "window_s": seconds,
        "mean_difference_percent": 100 * statistics.fmean(pairs) if pairs else None,
        "largest_difference_percent": 100 * max(map(abs, pairs)) if pairs else None,
        "our_bound_percent": 100 * statistics.fmean(bounds) if bounds else None,
    }


def cost(tools: list[Tool], repeats: int) -> list[dict[str, Any]]:
    """Microseconds to begin and to end an empty window of each tool."""
    taken: dict[str, list[tuple[float, float]]] = {tool.name: [] for tool in tools}
    for repeat in range(repeats):
        for tool in random.sample(tools, len(tools)):
            if tool.name == "codecarbon" and repeat >= CODECARBON_REPEATS:
                continue
            start = time.perf_counter()
            tool.begin()
            begun = time.perf_counter()
            time.sleep(0.01)
            ending = time.perf_counter()
            tool.end()
            taken[tool.name].append((begun - start, time.perf_counter() - ending))
    rows = []
    for name, times in taken.items():
        begins, ends = ([1e6 * each[side] for each in times] for side in (0, 1))
        rows.append(
            {
                "measured": "cost",
                "tool": name,
                "windows": len(times),
                "begin_us_median": statistics.median(begins),
                "begin_us_p95": float(np.percentile(begins, 95)),
                "end_us_median": statistics.median(ends),
                "end_us_p95": float(np.percentile(ends, 95)),
            }
        )
    return rows


def sampling(uuid: str, step: Callable[[], None], blocks: int, block_s: float = 2.0) -> dict[str, Any]:
    """Time per step in blocks with the sampler running and without, the order of a pair drawn by lot."""
    context = multiprocessing.get_context("spawn")
    go, pause, over, ready = (context.Event() for _ in range(4))
    child = context.Process(target=sample_in_turns, args=(uuid, go, pause, over, ready))
    child.start()
    ready.wait(120)
    ratios = []
    for _ in range(blocks):
        seconds: dict[bool, float] = {}
        for sampled in random.sample([True, False], 2):
            if sampled:
                pause.clear()
                go.set()
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < block_s:
                step()
                steps += 1
            seconds[sampled] = (time.perf_counter() - start) / steps
            go.clear()
            pause.set()
        ratios.append(np.log(seconds[True] / seconds[False]))
    over.set()
    go.set()
    child.join(60)
    interval = scipy.stats.bootstrap((np.array(ratios),), np.mean, rng=np.random.default_rng(0))
    low, high = interval.confidence_interval
    return {
        "measured": "sampling",
        "rate_hz": 10,
        "pairs_of_blocks": blocks,
        "block_s": block_s,
        "step_time_change_percent": 100 * float(np.expm1(np.mean(ratios))),
        "interval_95_percent": [100 * float(np.expm1(low)), 100 * float(np.expm1(high))],
    }


def sample_in_turns(uuid: str, go: Event, pause: Event, over: Event, ready: Event) -> None:
    """The sampler's process: samples whenever it is told to."""
    with open_meter(MeterRequest("cuda", uuid=uuid, power_only=True)) as meter:
        ready.set()
        while go.wait() and not over.is_set():
            sampler = PowerSampler([meter], 10, _forget, host=meter.device.host)
            ended = sampler.run(pause)
            if ended.reason:
                raise SystemExit(f"the sampler failed: {ended.reason}")


def _forget(_: Sample) -> None:
    """Where samples go whose cost alone is of interest."""


if __name__ == "__main__":
    main()
