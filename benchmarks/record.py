"""Writes a benchmark's rows with what a reader needs to judge them: card, versions, date, command."""

import functools
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def record(path: Path, rows: Sequence[dict[str, Any]], device: torch.device | None = None) -> None:
    """Writes one JSON file, whole or not at all: a benchmark that is cut off keeps what it wrote last.

    Args:
        path: Where; folders are made.
        rows: What was measured, units in the names.
        device: The card that was measured on; None for a benchmark without one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": Path(sys.argv[0]).stem,
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **surroundings(device),
        "rows": list(rows),
    }
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(path)


def recorded_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that a file holds; none if there is no such file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def command_line() -> str:
    """The command that this process was started with."""
    return command(sys.argv)


def command(arguments: Sequence[str]) -> str:
    """The command as anyone would type it from the repository's root: no machine's paths."""
    program, *options = arguments
    shown = [Path(option).name if Path(option).is_absolute() else option for option in options]
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    launcher = ["torchrun", "--nproc-per-node", ranks] if ranks else ["python"]
    return shlex.join([*launcher, "-m", f"benchmarks.{Path(program).stem}", *shown])


def surroundings(device: torch.device | None) -> dict[str, Any]:
    """Card, driver and versions."""
    about: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": _cpus(),
    }
    if device is not None and device.type == "cuda":
        about |= {
            "card": torch.cuda.get_device_name(device),
            "cards": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return about


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


@functools.cache
def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
