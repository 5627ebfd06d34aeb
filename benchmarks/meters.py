"""Ghostwatt's meter against Zeus and CodeCarbon: the same windows, what a window costs, what sampling costs.

    python -m benchmarks.meters [--out FILE] [--only agreement cost turns sampler] [--append]
        [--windows 3] [--seconds 10]

Needs `pip install zeus codecarbon` for the comparison; a peer that is missing is left out and named. On a
host without an NVIDIA driver it runs against the tests' scripted board (a C compiler is needed). With its
defaults it takes about two minutes. The file is written after each window and pair, so that a run that is cut off
loses only the rest; `--append` keeps what the file has of other parts, measured on the same board.

- agreement: windows around training steps, metered by all tools at once, each the outermost in turn.
- cost: begin and end of windows without load, hundreds of each tool, in turn; and the driver's own calls.
- turns: a training window and the evaluation after it, as jobs have them: ours reads once where one ends and the other
  begins.
- sampler: time of training steps with the sampler running in another process and without, in turn.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.meter_tools import CodeCarbon, Ghostwatt, GhostwattInJobs, Tool, Zeus
from benchmarks.meter_windows import agreement, call_cost, cost, cost_seconds, turns
from benchmarks.record import command_line, record
from benchmarks.sampler_cost import sampler_cost, training_load
from phantom_core.meters.base import Meter, MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.nvml_lookup import list_boards

STUB_VARIABLE = "GHOSTWATT_NVML_STUB"
STUB_WATTS = ((0.0, 90.0), (5.0, 90.0), (6.0, 520.0), (3_600.0, 560.0))
"""Corners (seconds, watts) of the scripted board's power."""
CODECARBON_WINDOWS = 20
"""Its windows come one at a time and take long, so fewer must do."""
SAMPLER_UP_S = 10.0
"""About how long the sampler's process takes to come up."""
PARTS = ("agreement", "cost", "turns", "sampler")
SAME = ("board", "scripted_board", "method", "driver")
"""What rows of one file have in common."""


def main() -> None:
    """Runs the parts and writes one file."""
    began_s = time.monotonic()
    wanted = _options()
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
    with ExitStack() as stack:
        meter = stack.enter_context(open_meter(MeterRequest("cuda", uuid=board.uuid)))
        ours = Ghostwatt(meter)
        peers, missing = _peers(cuda_index, board.index) if {*wanted.only} != {"sampler"} else ([], {})
        others_open = stack.enter_context(ExitStack())
        for tool in peers:
            others_open.callback(tool.close)
        result = Result(wanted.out, setting(meter, board.name, peers, missing), began_s, keep=wanted.append)
        calls = call_cost(board.uuid, wanted.repeats)
        result.say(f"about {_estimate(wanted, len(peers), calls):.0f} s to go, besides building the load")
        if "cost" in wanted.only:
            result.show("cost", [calls])
            others = [GhostwattInJobs(meter), *peers]
            for rows in cost(ours, others, wanted.repeats, wanted.slow_repeats, wanted.pause):
                result.show("cost", [calls, *rows])
        if "turns" in wanted.only:
            for rows in turns(GhostwattInJobs(meter), peers, wanted.turns, wanted.pause):
                result.show("turns", rows)
        if not {"agreement", "sampler"} & {*wanted.only}:
            return
        load = stack.enter_context(training_load(wanted.width, wanted.batch_size))
        result.say(f"the load is built: width {load.width}, {load.mode}")
        if "agreement" in wanted.only:
            for rows in agreement(ours, peers, load, wanted.windows, wanted.seconds):
                result.show("agreement", rows)
        others_open.close()
        if "sampler" in wanted.only:
            for row in sampler_cost(board.uuid, load, wanted.pairs, wanted.block_seconds):
                result.show("sampler", [row])
        result.say(f"{wanted.out} has {', '.join(result.parts)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "meters.json")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--append", action="store_true", help="keep what the file has of other parts")
    parser.add_argument("--windows", type=int, default=3, help="windows around the load")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of such a window")
    parser.add_argument("--repeats", type=int, default=300, help="windows without load per tool")
    parser.add_argument(
        "--slow-repeats", type=int, default=CODECARBON_WINDOWS, help="the same for CodeCarbon"
    )
    parser.add_argument(
        "--pause", type=float, default=0.15, help="seconds of a window without load, at least"
    )
    parser.add_argument("--turns", type=int, default=40, help="pairs of a training and an evaluation window")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of blocks with and without the sampler")
    parser.add_argument("--block-seconds", type=float, default=2.0, help="length of such a block")
    parser.add_argument("--width", type=int, default=8_192 if torch.cuda.is_available() else 256)
    parser.add_argument("--batch-size", type=int, default=256)
    return parser.parse_args()


def _estimate(wanted: argparse.Namespace, peers: int, calls: dict[str, Any]) -> float:
    """Seconds that the parts will take, about, going by what a call of the driver costs here."""
    call_s = max(calls["counter_us_median"], calls["power_us_median"]) / 1e6
    seconds = {
        "agreement": wanted.windows * wanted.seconds,
        "cost": cost_seconds(
            wanted.repeats, wanted.slow_repeats if peers else 0, wanted.pause, 2 + peers, call_s
        ),
        "turns": peers * 2 * wanted.turns * (2 * wanted.pause + 4 * call_s),
        "sampler": SAMPLER_UP_S + 2 * (wanted.pairs + 1) * wanted.block_seconds,
    }
    return float(sum(seconds[part] for part in wanted.only))


class Result:
    """One file that grows with every row, and what is told meanwhile.

    Args:
        path: The file.
        setting: What the rows depend on.
        began_s: When the benchmark began, on the monotonic clock.
        keep: Whether parts that the file has already stay until they are measured anew.

    Raises:
        SystemExit: They were measured on another board, or read otherwise.
    """

    def __init__(self, path: Path, setting: dict[str, Any], began_s: float, *, keep: bool) -> None:
        self._path, self._setting, self._began_s = path, setting, began_s
        self._made = {"command": command_line(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self._device = torch.device("cuda", 0) if torch.cuda.is_available() else None
        self._rows: dict[str, list[dict[str, Any]]] = {}
        if keep and path.exists():
            self._keep(json.loads(path.read_text()))

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that it has rows of."""
        return tuple(part for part in PARTS if part in self._rows)

    def show(self, part: str, rows: Sequence[dict[str, Any]]) -> None:
        """Takes a part's rows so far, in place of those that it had, and writes the file."""
        self._rows[part] = [{**row, "part": part, **self._made} for row in rows]
        record(self._path, [self._setting, *self._ordered()], self._device)
        self.say(f"{part}: " + "; ".join(filter(None, map(_shown, rows))))

    def say(self, text: str) -> None:
        """Prints a line with the seconds so far."""
        print(f"[{time.monotonic() - self._began_s:5.1f} s] {text}", flush=True)

    def _ordered(self) -> list[dict[str, Any]]:
        return [row for part in PARTS for row in self._rows.get(part, [])]

    def _keep(self, document: dict[str, Any]) -> None:
        earlier, *rows = document["rows"]
        mine, theirs = (
            {name: each.get(name) for name in SAME} for each in (self._setting, document | earlier)
        )
        if mine != theirs:
            raise SystemExit(f"{self._path} was measured on {theirs}, this is {mine}; write to another --out")
        for row in rows:
            made = {name: row.get(name, document[name]) for name in ("command", "date")}
            self._rows.setdefault(row.get("part", row["measured"]), []).append({**row, **made})
        for name in ("versions", "left_out"):
            self._setting[name] = {**earlier[name], **self._setting[name]}
        lent = [*earlier["codecarbon_without"], *self._setting["codecarbon_without"]]
        self._setting["codecarbon_without"] = list(dict.fromkeys(lent))


def _shown(row: dict[str, Any]) -> str:
    """A row in a few words."""

    def percent(value: float | None) -> str:
        return "unknown" if value is None else f"{value:+.3f} %"

    match row["measured"]:
        case "agreement":
            return f"{row['peer']} {percent(row['mean_difference_percent'])} in {row['windows']} windows"
        case "cost":
            return f"{row['tool']} {row['how']} {row['begin_us_median']:.1f} + {row['end_us_median']:.1f} us"
        case "cost ratio":
            return f"{row['tool']} / {row['peer']} {row['begin_ratio']:.3f} and {row['end_ratio']:.3f}"
        case "turn":
            return f"{row['tool']} {row['us_median']:.1f} us"
        case "turn ratio":
            return f"{row['tool']} / {row['peer']} {row['ratio']:.3f}"
        case "calls":
            return f"the driver's counter {row['counter_us_median']:.1f} us"
        case _:
            low, high = row["interval_95_percent"]
            change = percent(row["step_time_change_percent"])
            return f"{change} ({percent(low)} to {percent(high)}) in {row['pairs_of_blocks']} pairs"


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
        "measured": "setting",
        "board": board,
        "scripted_board": STUB_VARIABLE in os.environ,
        "driver": meter.device.driver,
        "method": meter.device.method,
        "update_period_s": getattr(meter, "update_period_s", None),
        "versions": versions,
        "left_out": missing,
        "codecarbon_without": next((tool.lent for tool in peers if isinstance(tool, CodeCarbon)), []),
    }


if __name__ == "__main__":
    main()
