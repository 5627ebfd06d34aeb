"""Rows of `layers.py`: an arm's rounds, and what follows from them: intervals, rooflines, exposed time, targets."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.paired import paired_difference
from benchmarks.record import command_line
from benchmarks.step_arms import BASELINE, BASELINE_OVER_NCCL, Size, StepArm
from benchmarks.step_trainers import Built, dataset_of, step_work_of
from benchmarks.workplace import Workplace
from phantom_core.intervals import FEWEST_PAIRS, ratio_intervals
from phantom_core.prediction import Ceilings, floor, predict
from phantom_core.profile import DeviceProfile, ProfileError, Transport
from phantom_core.protocol import Exchange
from phantom_core.spec import PhantomArm

Row = dict[str, Any]
ENERGY_TARGETS = {4096: 0.45, 8192: 0.33, 16384: 0.30}
"""Of phantom's J per step as a fraction of column/row's, on four linked boards in bfloat16."""
FLOOR_TARGET = 1.15
"""Of phantom's step time as a multiple of the largest roofline term, from this width on:"""
FLOOR_TARGET_WIDTH = 16384
TARGET_ARM = "phantom"


def setting_row(
    place: Workplace, profile: DeviceProfile | str, ceilings: list[Row], rounds: int, window_s: float
) -> Row:
    """What all rows of a run share."""
    device = place.meter.device
    return {
        "measured": "setting",
        "command": command_line(),
        "device": device.name,
        "backend": place.ranks.backend,
        "world_size": place.world_size,
        "energy_method": device.method,
        "energy_reason": device.reason,
        "power_limit_w": device.power_limit_mw and device.power_limit_mw / 1_000,
        "rounds": rounds,
        "window_s": window_s,
        "profile": profile.name if isinstance(profile, DeviceProfile) else None,
        "profile_reason": None if isinstance(profile, DeviceProfile) else profile,
        "ceilings": ceilings,
    }


def arm_row(
    size: Size, arm: StepArm, built: Built, limits: Ceilings, profile: DeviceProfile | str, dtype: str
) -> Row:
    """An arm before its first round."""
    work = step_work_of(arm)
    least = floor(work, limits)
    trainer = built.trainer
    return {
        "measured": "arm",
        "n": size.n,
        "depth": size.depth,
        "k": size.k,
        "b": size.b,
        "p": size.p,
        "dtype": dtype,
        "arm": arm.name,
        "strategy": arm.planned.arm.strategy,
        "transport": trainer and trainer.exchange.name,
        "transport_reason": trainer and trainer.exchange.reason,
        "reason": built.reason,
        "step_mode": trainer and trainer.step_mode,
        "step_mode_reason": trainer and trainer.step_mode_reason,
        "parameters": trainer and trainer.parameters_total,
        "peak_memory_bytes": built.peak_bytes,
        "bytes_sent_per_step": trainer and trainer.bytes_sent_per_step,
        "flops_per_step_per_rank": work.flops,
        "floor": {
            "gemm_ms": 1_000 * least.gemm_s,
            "memory_ms": 1_000 * least.memory_s,
            "link_ms": 1_000 * least.link_s,
            "step_ms": 1_000 * least.step_s,
            "bound": least.bound,
        },
        "prediction": predicted(arm, built, profile),
        "rounds": [],
    }


def predicted(arm: StepArm, built: Built, profile: DeviceProfile | str) -> Row:
    """What the formulas say, or why they say nothing."""
    if isinstance(profile, str):
        return {"reason": profile}
    dataset, trainer = dataset_of(arm), built.trainer
    try:
        found = predict(
            arm.planned,
            dataset.shape,
            dataset.placement,
            profile,
            mode="graph" if trainer is None else trainer.step_mode,
            small_transport=small_transport(arm, trainer.exchange.name) if trainer is not None else None,
        )
    except ProfileError as error:
        return {"reason": str(error)}
    return {
        "ms_per_step": 1_000 * found.step_s,
        "j_per_step": found.energy_j,
        "label": found.label,
        "gemm_ms": 1_000 * found.gemm_s,
        "elementwise_ms": 1_000 * found.elementwise_s,
        "update_ms": 1_000 * found.update_s,
        "exposed_ms": 1_000 * found.exposed_s,
        "waiting_ms": 1_000 * found.waiting_s,
        "limit": found.limit,
    }


def small_transport(arm: StepArm, exchange: Exchange | None) -> Transport | None:
    """What a profile calls that which carried an arm's small messages; None is the fastest that it knows.

    Args:
        arm: Which.
        exchange: What carried most of its messages, which of a phantom arm's hidden layers are all small.
    """
    if not arm.nccl_only and not isinstance(arm.planned.arm, PhantomArm):
        return None
    return "fused" if exchange == "symmetric_memory" else exchange


def summarise(rows: Sequence[Row]) -> None:
    """Works out, for all arms of one size, what follows from the rounds so far; changes the rows."""
    baseline = next((row for row in rows if row["arm"] == BASELINE), None)
    over_nccl = next((row for row in rows if row["arm"] == BASELINE_OVER_NCCL and row["rounds"]), None)
    for row in rows:
        if not row["rounds"]:
            continue
        ms = statistics.median(each["ms_per_step"] for each in row["rounds"])
        joules = [each["j_per_step"] for each in row["rounds"]]
        bounds = [each["j_per_step_bound"] for each in row["rounds"]]
        row["ms_per_step"] = ms
        row["j_per_step"] = None if None in joules else statistics.fmean(joules)
        row["j_per_step_bound"] = None if None in bounds else statistics.fmean(bounds)
        row["energy_method"] = row["rounds"][0]["method"]
        row["energy_reason"] = row["rounds"][0]["reason"]
        row["gemm_roofline_share"] = row["floor"]["gemm_ms"] / ms
        row["times_floor"] = ms / row["floor"]["step_ms"]
        row |= _exposed(row)
        if "ms_per_step" in row["prediction"]:
            row["prediction"]["time_error"] = row["prediction"]["ms_per_step"] / ms - 1
            if row["j_per_step"]:
                row["prediction"]["energy_error"] = row["prediction"]["j_per_step"] / row["j_per_step"] - 1
        if baseline is not None and row is not baseline:
            row["time_ratio"] = _ratio(baseline, row, "ms_per_step")
            row["energy_ratio"] = _ratio(baseline, row, "j_per_step")
        if over_nccl is not None and row is not over_nccl:
            row["energy_ratio_to_nccl"] = _ratio(over_nccl, row, "j_per_step")
        row["targets"] = _targets(row, baseline, over_nccl)


def _exposed(row: Row) -> Row:
    """What the arm is faster by without communication, as it came out: below 0 where it was slower.

    Of pairs of windows, with Student's 95 % interval; of earlier files, which have one window without communication
    after all rounds, without an interval.
    """
    silent = row.get("silent") or {}
    if "pairs" in silent:
        usual_ms = [pair["ms_per_step"] for pair in silent["pairs"]]
        silent_ms = [pair["silent_ms_per_step"] for pair in silent["pairs"]]
        whole_ms = statistics.fmean(usual_ms)
        found = paired_difference(usual_ms, silent_ms)
        if found is None:
            found = {"mean": whole_ms - statistics.fmean(silent_ms)}
    elif "ms_per_step" in silent:
        whole_ms = row["ms_per_step"]
        found = {"mean": whole_ms - silent["ms_per_step"]}
    else:
        return {}
    return {
        "exposed_ms": found["mean"],
        "exposed_share": found["mean"] / whole_ms,
        "exposed_share_low": found["low"] / whole_ms if "low" in found else None,
        "exposed_share_high": found["high"] / whole_ms if "high" in found else None,
    }


def _ratio(baseline: Row, row: Row, metric: str) -> Row | None:
    """The arm's share of the baseline, paired by round, with its 95 % interval; None if it is unknown."""
    theirs = {(each["group"], each["round"]): each[metric] for each in baseline["rounds"]}
    pairs = [(each[metric], theirs.get((each["group"], each["round"]))) for each in row["rounds"]]
    logs = [float(np.log(own / other)) for own, other in pairs if own and other]
    if len(logs) < len(pairs) or len(logs) < FEWEST_PAIRS:
        return None
    (interval,) = ratio_intervals([logs], seed=0)
    return {"ratio": interval.ratio, "low": interval.low, "high": interval.high, "rounds": len(logs)}


def _targets(row: Row, baseline: Row | None, over_nccl: Row | None) -> list[Row]:
    """The targets that stand for this row, and what can be said of them."""
    if row["arm"] != TARGET_ARM or row["p"] != 4 or row["k"] != 64 or row["dtype"] != "bfloat16":
        return []
    targets = []
    limit = ENERGY_TARGETS.get(row["n"])
    # What was aimed at was set when sums travelled by NCCL, as PyTorch's own tensor parallelism sends them.
    for name, other, ratio in (
        ("column/row", baseline, row.get("energy_ratio")),
        ("column/row over NCCL", over_nccl, row.get("energy_ratio_to_nccl")),
    ):
        if limit is not None and ratio is not None and other is not None:
            doubt = _doubt(row) + _doubt(other)
            targets.append(_target(f"J per step against {name}", ratio, limit, doubt))
    time = row.get("time_ratio")
    if row["n"] == min(ENERGY_TARGETS) and time is not None:
        targets.append(_target("ms per step against column/row", time, 1.0))
    if row["n"] >= FLOOR_TARGET_WIDTH:
        times = row["times_floor"]
        alone = {"ratio": times, "low": times, "high": times}
        targets.append(_target("ms per step against the largest roofline term", alone, FLOOR_TARGET))
    return targets


def _doubt(row: Row) -> float:
    """What an arm's joules may be off by at worst, as a share of them."""
    bound = row["j_per_step_bound"]
    return math.inf if bound is None else bound / row["j_per_step"]


def _target(what: str, found: Row, limit: float, doubt: float = 0.0) -> Row:
    """Reached, or not, only where the whole interval says so, widened by what the readings may be off by."""
    low, high = found["low"] * max(0.0, 1 - doubt), found["high"] * (1 + doubt)
    verdict = "reached" if high <= limit else "not reached" if low > limit else "undecided"
    return {
        "what": what,
        "value": found["ratio"],
        "low": low,
        "high": high if math.isfinite(high) else None,
        "limit": limit,
        "verdict": verdict,
    }
