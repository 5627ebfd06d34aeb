"""Everything that wants boards, in one go: tests on GPUs, profile, layers, sweeps, attribution, predictions.

    python -m benchmarks.boards [--ranks 4] [--only tests layers ...] [--most-s 540] [--out FOLDER]

Each part is a process of its own with a log in the folder; one that fails, or takes longer than `--most-s`, keeps no
other from its turn. Nothing of `benchmarks/results` is touched: what is worth keeping is copied there by hand.
Without `--ranks` all boards of this host are used; `--tiny` tries the parts on CPUs.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Part:
    """One command."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    code: int | None
    """Its exit code; None where its time was over."""
    seconds: float


def parts(ranks: int, folder: Path, *, tiny: bool = False) -> list[Part]:
    """What there is to run, in an order in which each finds what it needs.

    Args:
        ranks: Processes, one a board.
        folder: Where results go.
        tiny: Sizes for a try without a GPU.
    """
    size = ("--tiny",) if tiny else ("--quick",)
    profile = ("--profile", str(folder / "profile.json"))

    def on_ranks(name: str, script: str, *arguments: str) -> Part:
        run = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        return Part(
            name, (*run, "-m", f"benchmarks.{script}", *arguments, "--out", str(folder / f"{name}.json"))
        )

    made = [
        Part("tests", (sys.executable, "-m", "pytest", "-q", "-ra", "tests/gpu")),
        on_ranks("calibrate", "calibrate", *size, *profile),
        on_ranks("layers", "layers", *size, "--rounds", "3", "--sets", "sizes", *profile),
        on_ranks("sweeps", "layers", *size, "--rounds", "3", "--sets", "ghosts", "ranks", *profile),
        on_ranks("attribution", "attribution", *size, "--rounds", "3", *profile),
        on_ranks("ghost_exchange", "ghost_exchange"),
    ]
    for measured in ("layers", "sweeps"):
        of = (*profile, "--layers", str(folder / f"{measured}.json"))
        out = ("--out", str(folder / f"predictions_{measured}.json"))
        made.append(
            Part(f"predictions_{measured}", (sys.executable, "-m", "benchmarks.predictions", *of, *out))
        )
    if tiny:  # the fused exchange is a kernel for GPUs, and tiny layers have one set
        made = [part for part in made if part.name not in ("ghost_exchange", "sweeps", "predictions_sweeps")]
    return made


def run(part: Part, folder: Path, most_s: float) -> Outcome:
    """Runs a part, its output in a log, and ends all of it where its time is over."""
    began = time.monotonic()
    with (folder / f"{part.name}.log").open("wb") as log:
        log.write(f"$ {shlex.join(part.command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            part.command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=most_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                # The whole session: ranks outlive the command that started them.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Outcome(code, time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen parts; 1 if one of them did not succeed."""
    names = [part.name for part in parts(1, Path())]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--most-s", type=float, default=540.0, help="seconds that a part may take")
    parser.add_argument("--out", type=Path, default=Path("boards"))
    parser.add_argument("--tiny", action="store_true", help="sizes for a try without a GPU")
    options = parser.parse_args(arguments)
    if options.ranks < 1:
        parser.error("this host has no GPU that PyTorch sees; --tiny --ranks 2 tries the parts on CPUs")
    folder: Path = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for part in parts(options.ranks, folder, tiny=options.tiny):
        if part.name not in options.only:
            continue
        print(f"{part.name}: {shlex.join(part.command)}", flush=True)
        outcomes.append(run(part, folder, options.most_s))
        print(f"  {_said(outcomes[-1])}; {folder / part.name}.log", flush=True)
    return 0 if all(each.code == 0 for each in outcomes) else 1


def _said(outcome: Outcome) -> str:
    if outcome.code is None:
        return f"ended after {outcome.seconds:.0f} s: its time was over"
    return f"{'done' if outcome.code == 0 else f'failed (exit {outcome.code})'} in {outcome.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
