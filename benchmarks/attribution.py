"""Where a step's milliseconds and joules go: communication, optimizer, activations; and the kernels' timeline.

    torchrun --nproc-per-node 4 -m benchmarks.attribution [--quick] [--widths 16384] [--arms phantom ...]

Two methods, each named in its rows. `variants`: the same arm with one part left out (collectives replaced by local
copies; no optimizer; no activation), metered in interleaved rounds; a part costs what the whole takes more than the
variant without it, paired by round. Without all three, GEMMs are left, with the few small kernels of loss and rows, and
gaps. Parts that overlap can't be told apart so: they need not add up to the whole.
`profiler`: the kernels of a few steps after all metering, split by what runs at each instant; milliseconds, and of gaps
joules as an estimate, from the power that the profile's boards draw awake.
Nothing is profiled inside a metered window.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.kernel_names import Kernel, Split, split
from benchmarks.layers import RESULTS, SIZES, TINY
from benchmarks.paired import paired_difference
from benchmarks.record import record
from benchmarks.step_arms import BASELINE, Size, StepArm, arms
from benchmarks.step_trainers import (
    NoUpdate,
    UnsavedUpdate,
    build,
    communicates,
    in_turn,
)
from benchmarks.workplace import Workplace, workplace
from phantom_core.profile import ProfileError, load_profile
from phantom_core.spec import Dtype
from phantom_core.training import Trainer
from phantom_core.training.optimizers import WeightUpdate
from ray_jobs.ranks import Team

ARMS = (BASELINE, "phantom")
PROFILED_STEPS = 20
ROUNDS = 5
NOT_PROFILED = (
    "the run ended before it profiled its steps, which comes last; of several boards it profiles rank 0's"
)
"""What stands for a timeline until there is one."""
PARTS = {"silent": "communication", "frozen": "optimizer", "linear": "activations"}
"""What each variant leaves out."""


def main() -> None:
    """Runs on one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "attribution.json")
    parser.add_argument(
        "--profile", type=Path, default=RESULTS / "profile.json", help="for the joules of gaps"
    )
    parser.add_argument("--widths", nargs="*", type=int, help="only sizes of these widths")
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window-s", type=float, default=None, help="seconds of a window")
    parser.add_argument("--quick", action="store_true", help="shorter windows, widths 4096 and 16384")
    parser.add_argument("--tiny", action="store_true", help="one small size, for a test of the script itself")
    options = parser.parse_args()
    # The profiler's library must not be taken down between profiles: graphs that it has seen would not survive it.
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    window_s = options.window_s or (0.02 if options.tiny else 1.0 if options.quick else 2.0)
    widths = options.widths or ([4096, 16384] if options.quick else None)
    with workplace() as place:
        sizes = [TINY] if options.tiny else [size for size in SIZES if widths is None or size[0] in widths]
        rows: list[dict[str, Any]] = []
        began_s = time.monotonic()
        dtype: Dtype = "bfloat16" if place.on_gpu else "float32"
        team = place.ranks.everyone
        wanted = [
            (size, arm)
            for size in (Size(*each, place.world_size) for each in sizes)
            for arm in arms(size, dtype, options.arms)
        ]

        def keep(what: str) -> None:
            place.say(f"[{time.monotonic() - began_s:6.1f} s] {what}")
            if place.rank == 0:
                record(options.out, rows, place.device)

        for size, arm in wanted:
            rows.append(attribute(place, team, size, arm, options.rounds, window_s))
            keep(f"{size}: {arm.name}: {_shown(rows[-1])}")
        # Last of all: once it was used the profiler stays attached, and nothing metered may follow.
        for row, (size, arm) in zip(rows, wanted, strict=True):
            if "parts" in row:
                row["timeline"] = with_gaps_j(profiled(place, team, arm, window_s), options.profile)
                keep(f"{size}: {arm.name}: {row['timeline'].get('reason') or 'profiled'}")


def attribute(
    place: Workplace, team: Team, size: Size, arm: StepArm, rounds: int, window_s: float
) -> dict[str, Any]:
    """The variants of one arm; every rank of the team must call."""
    row: dict[str, Any] = {
        "measured": "attribution",
        **dataclasses.asdict(size),
        "arm": arm.name,
        "dtype": arm.planned.model.dtype,
        "reasons": {},
        "timeline": {"reason": NOT_PROFILED},
    }
    trainers: dict[str, tuple[Trainer, int]] = {}
    for name, variant, silent, update in _variants(arm):
        built = build(place, team, variant, window_s, silent=silent, update=update)
        if built.trainer is None:
            row["reasons"][name] = built.reason
        else:
            trainers[name] = built.trainer, built.steps
    measured = in_turn(place, team, trainers, rounds, f"{size} {arm.name}")
    row["variants"] = {
        name: {
            "ms_per_step": statistics.median(each["ms_per_step"] for each in found),
            "j_per_step": _mean([each["j_per_step"] for each in found]),
            "step_mode": trainers[name][0].step_mode,
        }
        for name, found in measured.items()
        if found
    }
    if measured.get("whole"):
        row["energy_method"] = measured["whole"][0]["method"]
        row["parts"] = {
            part: {
                "method": f"variants: whole minus {name}",
                "ms": paired_difference(
                    [each["ms_per_step"] for each in measured["whole"]], _ms(measured[name])
                ),
                "j": paired_difference(
                    [each["j_per_step"] for each in measured["whole"]], _j(measured[name])
                ),
            }
            for name, part in PARTS.items()
            if measured.get(name)
        }
        if measured.get("bare"):
            none = [0.0] * rounds
            row["parts"]["GEMMs"] = {
                "method": "variants: without communication, optimizer and activations",
                "ms": paired_difference(_ms(measured["bare"]), none),
                "j": paired_difference(_j(measured["bare"]), none),
            }
    for trainer, _ in trainers.values():
        trainer.close()
    return row


def _variants(arm: StepArm) -> list[tuple[str, StepArm, bool, Callable[..., WeightUpdate]]]:
    """Name, arm, whether silent, optimizer."""
    linear_model = arm.planned.model.model_copy(update={"activation": "identity"})
    linear = dataclasses.replace(arm, planned=arm.planned.model_copy(update={"model": linear_model}))
    found: list[tuple[str, StepArm, bool, Callable[..., WeightUpdate]]] = [
        ("whole", arm, False, UnsavedUpdate),
        ("frozen", arm, False, NoUpdate),
        ("linear", linear, False, UnsavedUpdate),
    ]
    if communicates(arm) and arm.can_be_silent:
        found.append(("silent", arm, True, UnsavedUpdate))
    if arm.can_be_silent:
        found.append(("bare", linear, True, NoUpdate))
    return found


def profiled(place: Workplace, team: Team, arm: StepArm, window_s: float) -> dict[str, Any]:
    """The timeline of an arm that is built for it."""
    built = build(place, team, arm, window_s)
    if built.trainer is None:
        return {"reason": built.reason}
    with built.trainer as trainer:
        return timeline(place, team, trainer)


def timeline(place: Workplace, team: Team, trainer: Trainer) -> dict[str, Any]:
    """The kernels of a few steps on rank 0's device, split; other ranks only take part in the steps."""
    if not place.on_gpu:
        return {"reason": "kernels are seen on GPUs only"}
    trainer.run(3)
    place.synchronize()
    # Starting the profiler takes a while, which the other ranks must not spend inside a collective.
    with contextlib.nullcontext() if place.rank else profile(activities=[ProfilerActivity.CUDA]) as profiler:
        team.agree(True)
        trainer.run(PROFILED_STEPS)
        place.synchronize()
    team.agree(True)
    if profiler is None:
        return {"reason": "rank 0's device is shown"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        kernels = kernels_of(json.loads(path.read_text()))
    if not kernels:
        return {"reason": "the profiler saw no kernels"}
    return {"method": f"profiler: rank 0's kernels in {PROFILED_STEPS} steps", **per_step(split(kernels))}


def with_gaps_j(timeline: dict[str, Any], profile: Path) -> dict[str, Any]:
    """A timeline with an estimate of what the profiled board draws in its gaps: as much as one that is only awake.

    Args:
        timeline: Of `timeline`.
        profile: Of such boards, for `Powers.active_w`.
    """
    if "gaps_ms" not in timeline:
        return timeline
    try:
        known = load_profile(profile)
    except ProfileError as error:
        return timeline | {"gaps_j": None, "gaps_j_reason": str(error)}
    active_w = known.powers.active_w
    return timeline | {
        "gaps_j": timeline["gaps_ms"] / 1_000 * active_w,
        "gaps_j_method": f"an estimate: gaps x {active_w:.0f} W, which a board that is awake and does nothing draws by "
        f"profile {known.name} (`{profile.name}`)",
    }


def kernels_of(trace: dict[str, Any]) -> list[Kernel]:
    """Kernels, copies and fills of a Chrome trace."""
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return [
        Kernel(event["name"], float(event["ts"]), float(event["dur"]))
        for event in trace["traceEvents"]
        if event.get("cat") in kinds and "dur" in event
    ]


def per_step(found: Split) -> dict[str, Any]:
    """A split of the profiled steps, for one of them."""
    values: dict[str, Any] = dataclasses.asdict(found)
    shown = {key: value / PROFILED_STEPS for key, value in values.items() if key != "unknown"}
    return shown | {"total_ms": found.total_ms / PROFILED_STEPS, "unknown": list(found.unknown)}


def _ms(found: list[dict[str, Any]]) -> list[float | None]:
    return [each["ms_per_step"] for each in found]


def _j(found: list[dict[str, Any]]) -> list[float | None]:
    return [each["j_per_step"] for each in found]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _shown(row: dict[str, Any]) -> str:
    if "parts" not in row:
        return f"not built: {row['reasons'].get('whole')}"
    whole = row["variants"]["whole"]
    parts = ", ".join(
        f"{name} {part['ms']['mean']:.3f} ms" for name, part in row["parts"].items() if part["ms"] is not None
    )
    return f"{whole['ms_per_step']:.3f} ms, of which {parts or 'unknown'}"


if __name__ == "__main__":
    main()
