"""Measures a device profile: what GEMMs, links, memory and optimizer of this host reach, and the power meanwhile.

    torchrun --nproc-per-node 4 -m benchmarks.calibrate [--quick] [--profile benchmarks/results/profile.json]

Runs on GPUs (NCCL, CUDA graphs, NVML) or on CPUs (gloo, loops, an estimate of energy that is labelled as one).
Measured rows go to `--out` as they come, the profile that is fitted to them to `--profile` at the end;
`python -m benchmarks.calibrate --fit benchmarks/results/calibrate.json` fits stored rows again, without a GPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ceilings
from benchmarks.ceilings import Row, Shape
from benchmarks.profile_fit import fitted_profile
from benchmarks.record import record
from benchmarks.step_arms import PLACEMENT, tiny_dense_arm
from benchmarks.workplace import Workplace, workplace
from phantom_core.layer_costs import Collective
from phantom_core.profile import Arithmetic
from phantom_core.spec import StopAtSteps, TrainingSpec
from ray_jobs.ranks import Team

RESULTS = Path(__file__).parent / "results"
KINDS: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce")


@dataclass(frozen=True)
class Scope:
    """How much is measured."""

    batches: tuple[int, ...]
    """Rows b of GEMMs."""
    sides: tuple[tuple[int, int], ...]
    """(out, in) of weights."""
    thin: tuple[int, ...]
    """Ghosts k, and all other ranks' ghosts, of thin GEMMs."""
    collective_elements: tuple[int, ...]
    """Numbers in whole tensors."""
    elementwise_elements: tuple[int, ...]
    """Numbers that a pass reads."""
    parameters: int
    """Weights of the optimizer's measurement."""
    load_side: int
    """Of the power load's square GEMM."""
    load_elements: int
    """Numbers of the power load's copy and all-gather."""
    seconds: float
    """Each timing."""
    power_s: float
    """Each power window."""


FULL = Scope(
    batches=(256, 1024, 4096),
    sides=((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (16384, 4096), (4096, 16384)),
    thin=(64, 192, 256),
    collective_elements=tuple(2**exponent for exponent in (14, 16, 18, 20, 22, 24, 25)),
    elementwise_elements=tuple(2**exponent for exponent in (10, 16, 18, 20, 22, 24)),
    parameters=2**27,
    load_side=8192,
    load_elements=2**27,
    seconds=0.08,
    power_s=3.0,
)
QUICK = Scope(
    batches=(256, 1024),
    sides=((1024, 1024), (4096, 4096), (16384, 4096), (4096, 16384)),
    thin=(64, 192),
    collective_elements=tuple(2**exponent for exponent in (14, 16, 18, 20, 22, 24)),
    elementwise_elements=tuple(2**exponent for exponent in (10, 18, 20, 22, 24)),
    parameters=2**27,
    load_side=8192,
    load_elements=2**27,
    seconds=0.05,
    power_s=1.5,
)
ON_CPU = Scope(
    batches=(64, 256),
    sides=((256, 256), (1024, 1024)),
    thin=(8, 32),
    collective_elements=tuple(2**exponent for exponent in (10, 14, 18, 20)),
    elementwise_elements=tuple(2**exponent for exponent in (10, 14, 18, 20)),
    parameters=2**20,
    load_side=1024,
    load_elements=2**20,
    seconds=0.05,
    power_s=1.0,
)
TINY = Scope(
    batches=(16, 64),
    sides=((64, 64), (640, 640)),
    thin=(4, 8),
    collective_elements=(256, 4096),
    elementwise_elements=(256, 4096),
    parameters=2**10,
    load_side=64,
    load_elements=2**12,
    seconds=0.001,
    power_s=0.05,
)


def main() -> None:
    """Runs on one rank, or fits stored rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "calibrate.json")
    parser.add_argument("--profile", type=Path, default=RESULTS / "profile.json")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, shorter windows")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test of the script itself")
    parser.add_argument("--arithmetic", nargs="*", default=None, help="bfloat16, float32, tf32, float64")
    parser.add_argument("--fit", type=Path, help="fit these stored rows; measure nothing")
    options = parser.parse_args()
    if options.fit is None:
        with workplace() as place:
            large = QUICK if options.quick else FULL
            scope = TINY if options.tiny else large if place.on_gpu else ON_CPU
            calibrate(place, scope, options.out, options.arithmetic)
            if place.rank:
                return
    document = json.loads((options.fit or options.out).read_text())
    profile = fitted_profile(document)
    options.profile.parent.mkdir(parents=True, exist_ok=True)
    options.profile.write_text(profile.model_dump_json(indent=1) + "\n")
    for fit in profile.gemms:
        print(
            f"GEMMs in {fit.arithmetic}{' (thin)' if fit.thin else ''}: fit off by {fit.median_error:.1%} "
            f"(median of {fit.shapes}), {fit.worst_error:.0%} at worst"
        )


def calibrate(place: Workplace, scope: Scope, out: Path, arithmetics: list[Arithmetic] | None) -> list[Row]:
    """Measures everything on all ranks; rank 0 writes the rows as they come."""
    wanted = arithmetics or (["bfloat16", "tf32"] if place.on_gpu else ["float32"])
    rows: list[Row] = [_setting(place)]
    start_s = time.monotonic()

    def keep(row: Row | None) -> None:
        if row is not None:
            rows.append(row)

    def progress(what: str) -> None:
        place.meet()
        if place.rank == 0:
            record(out, rows, place.device)
        place.say(f"[{time.monotonic() - start_s:6.1f} s] {what}")

    everyone = place.ranks.everyone
    # Power first: idle must be measured before anything is warm.
    for load in ceilings.loads(
        place, everyone, scope.load_side, 4 * scope.load_elements, scope.load_elements
    ):
        progress(f"power: {load.name}")
        keep(ceilings.power(place, everyone, load, scope.power_s))
    for arithmetic in wanted:
        shapes = list(_shapes(scope))
        progress(f"{len(shapes)} GEMMs in {arithmetic}")
        for shape in shapes:
            keep(ceilings.gemm(place, everyone, shape, arithmetic, scope.seconds))
    dtype = ceilings.torch_arithmetic(wanted[0])
    progress("element-wise kernels, optimizer, eager launches")
    for elements in scope.elementwise_elements:
        keep(ceilings.elementwise(place, everyone, elements, scope.seconds, dtype))
    training = TrainingSpec(optimizer="sgd", stop=StopAtSteps(steps=1))
    keep(ceilings.update(place, everyone, training, scope.parameters, scope.seconds))
    _on_team(place, 1, lambda team: keep(_eager(place, team)))
    for size in place.sizes[1:]:
        progress(f"collectives over {size} ranks")
        _on_team(place, size, lambda team: _collectives(place, team, scope, keep))
    progress("done")
    return rows


def _collectives(place: Workplace, team: Team, scope: Scope, keep: Callable[[Row | None], None]) -> None:
    dtype = ceilings.torch_arithmetic("bfloat16" if place.on_gpu else "float32")
    for kind in KINDS:
        for elements in scope.collective_elements:
            keep(ceilings.collective(place, team, kind, elements, scope.seconds, dtype))
            keep(ceilings.ghost_exchange(place, team, kind, elements, scope.seconds, dtype))
    keep(
        {
            "measured": "ghost exchange",
            "world_size": team.size,
            "used": team.compute.fuse_ghosts(place.device),
        }
    )


def _on_team(place: Workplace, size: int, measure: Callable[[Team], object]) -> None:
    """Ranks of a team measure; the others wait on the CPU."""
    team = place.team(size)
    if team is not None:
        measure(team)
    place.meet()


def _eager(place: Workplace, team: Team) -> Row:
    planned, dataset = tiny_dense_arm()
    assert dataset.placement == PLACEMENT
    return ceilings.eager_launch(place, team, planned, dataset, steps=200 if place.on_gpu else 10)


def _shapes(scope: Scope) -> Iterator[Shape]:
    """Forward, input's gradient and weight's gradient of every weight and batch; ghosts' GEMMs likewise."""
    for b in scope.batches:
        for n_out, n_in in scope.sides:
            yield Shape(b, n_out, n_in, "nt")
            yield Shape(b, n_in, n_out, "nn")
            yield Shape(n_out, n_in, b, "tn")
        for m in sorted({side for sides in scope.sides for side in sides}):
            for k in scope.thin:
                yield Shape(k, b, m, "nt")
                yield Shape(b, m, k, "nt")
                yield Shape(m, k, b, "tn")


def _setting(place: Workplace) -> Row:
    device = place.meter.device
    return {
        "measured": "setting",
        "device": device.name,
        "kind": place.device.type,
        "world_size": place.world_size,
        "backend": place.ranks.backend,
        "in_graph": place.on_gpu,
        "method": device.method,
        "energy_reason": device.reason,
        "power_limit_w": device.power_limit_mw and device.power_limit_mw / 1_000,
    }


if __name__ == "__main__":
    main()
