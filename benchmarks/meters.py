"""Ghostwatt's meter against Zeus and CodeCarbon: the same windows, what a window costs, what sampling costs.

    python -m benchmarks.meters [--out FILE] [--only agreement cost sampler] [--windows 3] [--seconds 10]

Needs `pip install zeus codecarbon` for the comparison; a peer that is missing is left out and named. On a
host without an NVIDIA driver it runs against the tests' scripted board (a C compiler is needed). With its
defaults it takes about three minutes.

- agreement: windows around training steps, metered by Ghostwatt and one peer at once, each the outer in turn.
- cost: begin and end of a short window without load, tools in a new order each time.
- sampler: time of training steps with the sampler running in another process and without (`sampler_cost.py`).
"""

import argparse
import contextlib
import importlib.metadata
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.meter_tools import CodeCarbon, Ghostwatt, GhostwattInJobs, Tool, Zeus
from benchmarks.record import record
from benchmarks.sampler_cost import Load, sampler_cost, training_load
from phantom_core.meters.base import Meter, MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.nvml_lookup import list_boards

STUB_VARIABLE = "GHOSTWATT_NVML_STUB"
STUB_WATTS = ((0.0, 90.0), (5.0, 90.0), (6.0, 520.0), (3_600.0, 560.0))
"""Corners (seconds, watts) of the scripted board's power."""
CODECARBON_REPEATS = 10
"""Its windows take so long that fewer must do."""
PARTS = ("agreement", "cost", "sampler")


def main() -> None:
    """Runs everything and writes one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "meters.json")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--windows", type=int, default=3, help="windows per peer")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--repeats", type=int, default=50, help="windows without load per tool")
    parser.add_argument("--pause", type=float, default=0.15, help="seconds of a window without load")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks with and without the sampler")
    parser.add_argument("--block-seconds", type=float, default=1.2, help="length of such a block")
    parser.add_argument("--width", type=int, default=8_192 if torch.cuda.is_available() else 256)
    parser.add_argument("--batch-size", type=int, default=256)
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
    with (
        open_meter(MeterRequest("cuda", uuid=board.uuid)) as meter,
        training_load(wanted.width, wanted.batch_size) as load,
    ):
        ours = Ghostwatt(meter)
        peers, missing = _peers(cuda_index, board.index)
        rows: list[dict[str, Any]] = [{"measured": "setting", **setting(meter, board.name, peers, missing)}]
        if "agreement" in wanted.only:
            rows += [agreement(ours, peer, load, wanted.windows, wanted.seconds) for peer in peers]
        if "cost" in wanted.only:
            rows += cost([ours, GhostwattInJobs(meter), *peers], wanted.repeats, wanted.pause)
        for tool in peers:
            tool.close()
        if "sampler" in wanted.only:
            rows.append(sampler_cost(board.uuid, load, wanted.pairs, wanted.block_seconds))
    for row in rows:
        print(row, flush=True)
    record(wanted.out, rows, torch.device("cuda", 0) if torch.cuda.is_available() else None)


def _peers(cuda_index: int, nvml_index: int) -> tuple[list[Tool], dict[str, str]]:
    """The tools that are installed, and the others with the reason."""
    peers: list[Tool] = []
    missing = {}
    for name, make in (("zeus", lambda: Zeus(cuda_index)), ("codecarbon", lambda: CodeCarbon(nvml_index))):
        try:
            peers.append(make())
        except ImportError as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return peers, missing


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


def setting(meter: Meter, board: str | None, peers: list[Tool], missing: dict[str, str]) -> dict[str, Any]:
    """What the numbers below depend on."""
    versions = {}
    for package in ("zeus", "codecarbon", "nvidia-ml-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "board": board,
        "scripted_board": STUB_VARIABLE in os.environ,
        "method": meter.device.method,
        "update_period_s": getattr(meter, "update_period_s", None),
        "versions": versions,
        "left_out": missing,
        "codecarbon_without": next((tool.lent for tool in peers if isinstance(tool, CodeCarbon)), []),
    }


def agreement(ours: Ghostwatt, peer: Tool, load: Load, windows: int, seconds: float) -> dict[str, Any]:
    """Both tools around the same load."""
    pairs, bounds = [], []
    for window in range(windows):
        outer, inner = (ours, peer) if window % 2 else (peer, ours)
        outer.begin()
        inner.begin()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            load.run(10)
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


def cost(tools: list[Tool], repeats: int, pause_s: float) -> list[dict[str, Any]]:
    """Microseconds to begin and to end a window without load, long enough for the counter to move, of each tool."""
    taken: dict[str, list[tuple[float, float]]] = {tool.name: [] for tool in tools}
    for repeat in range(repeats):
        for tool in random.sample(tools, len(tools)):
            if tool.name == "codecarbon" and repeat >= CODECARBON_REPEATS:
                continue
            start = time.perf_counter()
            tool.begin()
            begun = time.perf_counter()
            time.sleep(pause_s)
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


if __name__ == "__main__":
    main()
