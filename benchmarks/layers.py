"""J and ms per training step of every layout, in interleaved rounds on the same boards.

    torchrun --nproc-per-node 4 -m benchmarks.layers [--quick] [--sets sizes ghosts ranks] [--widths 4096 ...]
    torchrun --nproc-per-node 4 -m benchmarks.layers --quick --no-silent --widths 8192 --out ab.json \
        --arms phantom "phantom ghosts in line" "phantom update after"

bfloat16 with float32 masters, bias-free, ReLU, SGD; whole steps of the project's own trainer, in a CUDA graph. All arms
of a size that fit into memory together are built first, then measured round by round in shuffled order; the energy of
a window is read at the counter's ticks (`tick_windows`). Then each arm that communicates is built once more, and beside
it the same with its collectives replaced by local copies: what that is faster by, in pairs of windows, is the exposed
communication. Rows go to `--out` every round; `--append` keeps those of earlier runs, so that `--widths` and `--arms`
can cut a run into shorter ones.
Arms that are measured only if `--arms` names them: `phantom ghosts beside`, `phantom ghosts in line`,
`tensor column/row split`, `tensor gather split`, and any arm's name with ` update after` behind it.
Compiling DTensor's arm takes longest.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import ceilings
from benchmarks.layer_rows import arm_row, setting_row, summarise
from benchmarks.memory_rate import MEMORY_BURST, memory_rate
from benchmarks.record import record
from benchmarks.step_arms import BASELINE, Size, StepArm, arms
from benchmarks.step_trainers import (
    Built,
    build,
    communicates,
    dataset_of,
    in_turn,
    least_free_bytes,
    needed_bytes,
    row_of,
    window,
)
from benchmarks.workplace import Workplace, workplace
from phantom_core.prediction import Ceilings
from phantom_core.profile import Arithmetic, DeviceProfile, ProfileError, load_profile
from phantom_core.spec import Dtype, StopAtSteps, TrainingSpec
from ray_jobs.ranks import Team

RESULTS = Path(__file__).parent / "results"
SIZES = ((4096, 8, 64, 256), (8192, 8, 64, 256), (16384, 8, 64, 1024), (32768, 4, 64, 1024))
"""(n, L, k, b)."""
GHOSTS = (16, 256)
"""k besides 64, at `SWEPT`."""
SWEPT = (16384, 8, 64, 1024)
SWEEP_ARMS = ("phantom", "block-diagonal")
"""What sweeps measure beside the baseline."""
SWEPT_RANKS = ((8192, 8, 64, 256), (16384, 8, 64, 1024))
"""Sizes at every number of ranks."""
SIZES_ON_CPU = ((256, 4, 16, 64), (1024, 4, 32, 128))
TINY = (32, 2, 4, 16)
ROUNDS = 5
BURST_S = 0.02
MEMORY_SHARE = 0.85
"""Of a device's memory that arms may fill together."""


def main() -> None:
    """Runs on one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "layers.json")
    parser.add_argument("--profile", type=Path, default=RESULTS / "profile.json", help="predictions' profile")
    parser.add_argument("--sets", nargs="*", choices=["sizes", "ghosts", "ranks"], default=None)
    parser.add_argument("--widths", nargs="*", type=int, help="only sizes of these widths")
    parser.add_argument("--arms", nargs="*", help="only these arms (the baseline always)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window-s", type=float, default=None, help="seconds of a window")
    parser.add_argument(
        "--quick", action="store_true", help="shorter windows; the sizes alone, if no sets are named"
    )
    parser.add_argument("--tiny", action="store_true", help="one small size, for a test of the script itself")
    parser.add_argument(
        "--no-silent",
        action="store_true",
        help="leave out the windows without communication, for a quick A/B",
    )
    parser.add_argument("--append", action="store_true", help="keep what the file has of other runs")
    options = parser.parse_args()
    window_s = options.window_s or (0.02 if options.tiny else 1.0 if options.quick else 2.0)
    with workplace() as place:
        sets = options.sets or (["sizes"] if options.quick else ["sizes", "ghosts", "ranks"])
        sizes = _sizes(place, sets, options.widths, options.tiny, options.arms)
        earlier = _earlier(options.out, place.device) if options.append else []
        run = Run(
            place,
            options.out,
            _profile(options.profile),
            earlier,
            window_s,
            options.rounds,
            silent=not options.no_silent,
        )
        run.everything(sizes)


class Run:
    """One call of the script.

    Args:
        place: This rank.
        out: Where rank 0 writes rows.
        profile: What predictions are made from, or why there are none.
        earlier: Rows to keep.
        window_s: Seconds of a window.
        rounds: Passes over all arms of a size.
        silent: Whether arms are measured without communication, too.
    """

    def __init__(
        self,
        place: Workplace,
        out: Path,
        profile: DeviceProfile | str,
        earlier: Sequence[dict[str, Any]],
        window_s: float,
        rounds: int,
        *,
        silent: bool = True,
    ) -> None:
        self._with_silent = silent
        self._place, self._out, self._profile = place, out, profile
        self._window_s, self._rounds = window_s, rounds
        self._rows: list[dict[str, Any]] = list(earlier)
        self._began_s = time.monotonic()
        self._dtype: Dtype = "bfloat16" if place.on_gpu else "float32"
        self._arithmetic: Arithmetic = self._dtype

    def everything(self, sizes: Mapping[Size, Sequence[str] | None]) -> None:
        """Measures all sizes, each with the named arms, or with all of them."""
        place = self._place
        ceiling_rows = self._ceilings()
        ceilings_by_p = {size: self._ceilings_of(ceiling_rows, size) for size in place.sizes}
        self._keep(setting_row(place, self._profile, ceiling_rows, self._rounds, self._window_s))
        for size, names in sizes.items():
            team = place.team(size.p)
            if team is not None:
                wanted = None if names is None else [BASELINE, *names]
                self._size(team, size, arms(size, self._dtype, wanted), ceilings_by_p[size.p])
            place.meet()
        self._progress("done")

    def _size(self, team: Team, size: Size, wanted: list[StepArm], limits: Ceilings) -> None:
        rows: dict[str, dict[str, Any]] = {}
        for group in self._groups(team, wanted):
            built = self._build(team, size, group)
            for arm in group:
                row = rows.get(arm.name)
                if row is None or row["rounds"] == []:
                    rows[arm.name] = arm_row(size, arm, built[arm.name], limits, self._profile, self._dtype)
            self._measure_rounds(team, size, group, built, rows)
            for each in built.values():
                if each.trainer is not None:
                    each.trainer.close()
            built.clear()
        for arm in wanted:
            if self._with_silent and communicates(arm) and rows[arm.name]["rounds"]:
                unknown = {"reason": "DTensor's own collectives can't be left out"}
                rows[arm.name]["silent"] = (
                    self._without_communication(team, size, arm) if arm.can_be_silent else unknown
                )
                self._replace(rows)

    def _build(self, team: Team, size: Size, group: list[StepArm]) -> dict[str, Built]:
        built = {}
        for arm in group:
            built[arm.name] = each = build(self._place, team, arm, self._window_s)
            said = str(each.reason)
            if each.trainer is not None:
                mode, used = each.trainer.step_mode, each.trainer.exchange
                how = [
                    mode,
                    each.trainer.step_mode_reason,
                    used.name,
                    used.reason,
                    f"{each.steps} steps a window",
                ]
                said = ", ".join(filter(None, how))
            self._progress(f"{size}: {arm.name}: {said}")
        return built

    def _measure_rounds(
        self,
        team: Team,
        size: Size,
        group: list[StepArm],
        built: dict[str, Built],
        rows: dict[str, dict[str, Any]],
    ) -> None:
        ready = {name: each for name, each in built.items() if each.trainer is not None}
        taken = {name: len(rows[name]["rounds"]) for name in ready}
        for number in range(self._rounds):
            order = list(ready)
            random.Random(f"{size} {number}").shuffle(order)
            for position, name in enumerate(order):
                each = ready[name]
                assert each.trainer is not None
                measured = row_of(window(self._place, team, each.trainer, each.steps), each.steps)
                # Of an arm that is in several groups (the baseline) every group's rounds are kept apart.
                rows[name]["rounds"].append(
                    {"group": group[-1].name, "round": number, "position": position, **measured}
                )
            self._replace(rows)
            shown = ", ".join(_shown(name, rows[name]["rounds"][-1]) for name in ready)
            self._progress(f"{size}: round {number + 1}/{self._rounds}: {shown}")
        assert all(len(rows[name]["rounds"]) == taken[name] + self._rounds for name in ready)

    def _without_communication(self, team: Team, size: Size, arm: StepArm) -> dict[str, Any]:
        """The arm and the arm without communication, in pairs of windows, which of them first by chance."""
        sides: dict[str, Built] = {}
        for name in ("usual", "silent"):
            sides[name] = build(self._place, team, arm, self._window_s, silent=name == "silent")
        ready = {name: (each.trainer, each.steps) for name, each in sides.items() if each.trainer is not None}
        is_whole = len(ready) == len(sides)
        found = in_turn(self._place, team, ready, self._rounds if is_whole else 0, f"{size} {arm.name}")
        for trainer, _ in ready.values():
            trainer.close()
        if not is_whole:
            return {"reason": "; ".join(each.reason for each in sides.values() if each.reason)}
        pairs = [
            {
                "round": number,
                "first": "silent" if usual["position"] else "usual",
                "ms_per_step": usual["ms_per_step"],
                "silent_ms_per_step": silent["ms_per_step"],
                "j_per_step": usual["j_per_step"],
                "silent_j_per_step": silent["j_per_step"],
            }
            for number, (usual, silent) in enumerate(zip(found["usual"], found["silent"], strict=True))
        ]
        for silent in found["silent"]:
            self._progress(f"{size}: {_shown(f'{arm.name} without communication', silent)}")
        return {"method": "collectives replaced by local copies", "pairs": pairs}

    def _groups(self, team: Team, wanted: list[StepArm]) -> list[list[StepArm]]:
        """Arms that fit into memory together, each group with the baseline, so that all are paired with it."""
        free = least_free_bytes(self._place, team)
        if free is None:
            return [wanted]
        least = free * MEMORY_SHARE
        baseline = [arm for arm in wanted if arm.name == BASELINE]
        first = sum(needed_bytes(arm, dataset_of(arm)) for arm in baseline)
        groups: list[list[StepArm]] = []
        filled = math.inf
        for arm in wanted:
            if arm in baseline:
                continue
            needed = needed_bytes(arm, dataset_of(arm))
            if filled + needed > least:
                groups.append([*baseline])
                filled = first
            groups[-1].append(arm)
            filled += needed
        return groups or [baseline]

    def _ceilings(self) -> list[dict[str, Any]]:
        """GEMM, memory and link rates of this run, sustained."""
        place, everyone = self._place, self._place.ranks.everyone
        side, elements = (8192, 2**27) if place.on_gpu else (64, 2**12)
        found = []
        for load in ceilings.loads(place, everyone, side, 4 * elements, elements):
            row = ceilings.power(place, everyone, load, min(1.0, self._window_s))
            self._progress(f"ceiling: {load.name}")
            found.append(row)
        # A short burst runs at clocks that the power limit takes back later; a step that rests in between keeps them.
        burst = ceilings.gemm(
            place, everyone, ceilings.Shape(side, side, side, "nt"), self._arithmetic, BURST_S
        )
        rate = 2 * side**3 / burst["seconds"]
        training = TrainingSpec(optimizer="sgd", stop=StopAtSteps(steps=1))
        # A copy by the driver moves less than a kernel that reads and writes.
        update = ceilings.update(place, everyone, training, elements, BURST_S)
        return [
            *found,
            {"measured": "burst", "load": "gemm burst", "flops_per_s": rate},
            {"measured": "burst", "load": MEMORY_BURST, "bytes_per_s": update["bytes"] / update["seconds"]},
        ]

    def _ceilings_of(self, rows: list[dict[str, Any]], p: int) -> Ceilings:
        loads = {row["load"]: row for row in rows}
        link = loads.get("communication", {}).get("bytes_sent_per_s") if p > 1 else None
        gemm = max(loads["gemm"]["flops_per_s"], loads["gemm burst"]["flops_per_s"])
        return Ceilings(gemm, memory_rate(loads), link)

    def _replace(self, rows: dict[str, dict[str, Any]]) -> None:
        """Writes a size's rows as they are now."""
        own = {_key(row) for row in rows.values()}
        self._rows = [row for row in self._rows if _key(row) not in own]
        summarise(list(rows.values()))
        self._rows += rows.values()
        self._write()

    def _keep(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._write()

    def _write(self) -> None:
        if self._place.rank == 0:
            record(self._out, self._rows, self._place.device)

    def _progress(self, text: str) -> None:
        self._place.say(f"[{time.monotonic() - self._began_s:6.1f} s] {text}")


def _sizes(
    place: Workplace,
    sets: Sequence[str],
    widths: Sequence[int] | None,
    tiny: bool,
    names: Sequence[str] | None,
) -> dict[Size, Sequence[str] | None]:
    """Sizes in the order of measuring, and which arms at each; None is all."""
    p = place.world_size
    if tiny or not place.on_gpu:
        chosen = [TINY] if tiny else SIZES_ON_CPU
        return {Size(*size, p=each): names for size in chosen for each in place.sizes}
    found: dict[Size, Sequence[str] | None] = {}
    if "sizes" in sets:
        found |= {Size(*size, p=p): names for size in SIZES}
    swept: list[Size] = []
    if "ghosts" in sets:
        n, depth, k, b = SWEPT
        swept += [Size(n, depth, each, b, p) for each in (*GHOSTS, k)]
    if "ranks" in sets:
        swept += [Size(*size, p=each) for size in SWEPT_RANKS for each in place.sizes]
    for size in swept:
        found.setdefault(size, names or SWEEP_ARMS)
    return {size: wanted for size, wanted in found.items() if widths is None or size.n in widths}


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is of: an arm that is measured again takes its earlier row's place."""
    if row["measured"] != "arm":
        return (id(row),)
    return tuple(row[name] for name in ("n", "depth", "k", "b", "p", "dtype", "arm"))


def _earlier(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """Rows of a file of this card's.

    Raises:
        SystemExit: They are another card's.
    """
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    if document.get("card") != card:
        raise SystemExit(f"{path} has rows of {document.get('card')}, this is {card}; write to another --out")
    return list(document["rows"])


def _profile(path: Path) -> DeviceProfile | str:
    try:
        return load_profile(path)
    except ProfileError as error:
        return str(error).splitlines()[0]


def _shown(name: str, row: dict[str, Any]) -> str:
    joules = "J unknown" if row["j_per_step"] is None else f"{row['j_per_step']:.3f} J"
    return f"{name} {row['ms_per_step']:.3f} ms {joules}"


if __name__ == "__main__":
    main()
