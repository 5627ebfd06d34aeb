"""Tables of `attribution.py` and `predictions.py`, as `quote.py` puts them into the documents."""

from typing import Any

from benchmarks.step_arms import Size, arms
from benchmarks.step_arms import rows as dataset_rows
from phantom_core.step_work import step_work

Row = dict[str, Any]


def attribution(rows: list[Row]) -> str:
    """Milliseconds and joules by part."""
    lines = [
        "| n | arm | whole | communication | optimizer | activations | GEMMs and the rest | GEMMs run | gaps | "
        "launches: formula, profiler |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, None] = {}
    for row in rows:
        if "parts" not in row:
            reason = row["reasons"].get("whole")
            lines.append(f"| {row['n']} | {row['arm']} | not measured: {reason} | | | | | | | |")
            continue
        whole = row["variants"]["whole"]
        cells = [_ms_and_j(whole["ms_per_step"], whole["j_per_step"])]
        for name in ("communication", "optimizer", "activations", "GEMMs"):
            part = row["parts"].get(name)
            cells.append("–" if part is None else _part(part))
        timeline = row["timeline"]
        cells += [
            f"{timeline['gemm_ms']:.3f} ms" if "gemm_ms" in timeline else "unknown",
            _gaps(timeline, notes),
            f"{launches(row)}, {timeline['kernels']:.0f}"
            if "kernels" in timeline
            else f"{launches(row)}, unknown",
        ]
        lines.append(f"| {row['n']} | {row['arm']} | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Communication, optimizer, activations: the whole minus the same arm without them, paired over rounds, "
            "with Student's 95 % intervals; GEMMs and the rest: the arm without all three (variants). GEMMs run, gaps: "
            "rank 0's kernels in a few profiled steps outside all metered windows (profiler), gaps' joules those of "
            "its board. Parts overlap, so they need not add up. Launches: of an eager step by the formula, and kernels "
            "that the "
            f"profiler saw, which GPUs alone have some of.{''.join(f' {note}.' for note in notes)}",
        ]
    )


def launches(row: Row) -> int:
    """Launches of an attributed arm's step, by the formula."""
    # Files from before the format was written down are of GPUs.
    size = Size(row["n"], row["depth"], row["k"], row["b"], row["p"])
    (arm,) = arms(size, row.get("dtype", "bfloat16"), [row["arm"]])
    dataset = dataset_rows(size.b)
    return step_work(arm.planned, dataset.shape, dataset.placement).launches()


def _gaps(timeline: Row, notes: dict[str, None]) -> str:
    """Milliseconds, and joules as an estimate; notes get what that is from, or why there is nothing."""
    if "gaps_ms" not in timeline:
        notes[f"Unknown: {timeline['reason']}"] = None
        return "unknown"
    ms, joules = f"{timeline['gaps_ms']:.3f} ms", timeline["gaps_j"]
    if joules is None:
        notes[f"Gaps' joules are unknown: {timeline['gaps_j_reason']}"] = None
        return f"{ms}, J unknown"
    notes[f"Gaps' joules, {timeline['gaps_j_method']}"] = None
    return f"{ms}, {joules:.4f} J (estimate)"


def predictions(rows: list[Row]) -> str:
    """Errors by number of ranks."""
    lines = [
        "| ranks | steps compared | ms per step off by (median, worst) | J per step off by (median, worst) | "
        "peak memory off by (median, worst) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["measured"] == "error":
            errors = [_errors(row, what) for what in ("time", "energy", "memory")]
            lines.append(f"| {row['world_size']} | {row['steps']} | {' | '.join(errors)} |")
    (source,) = [row for row in rows if row["measured"] == "source"]
    return "\n".join([*lines, "", f"Profile: {source['profile']}. Steps: {source['layers']}."])


def _errors(row: Row, what: str) -> str:
    median, worst = row[f"median_{what}_error"], row[f"worst_{what}_error"]
    return "not measured" if median is None else f"{median:.0%}, {worst:.0%}"


def _part(part: Row) -> str:
    ms, joules = part["ms"], part["j"]
    if ms is None:
        return "unknown"
    shown = f"{ms['mean']:.3f} [{ms['low']:.3f}, {ms['high']:.3f}] ms"
    if joules is None:
        return shown
    return f"{shown}, {joules['mean']:.2f} [{joules['low']:.2f}, {joules['high']:.2f}] J"


def _ms_and_j(ms: float, joules: float | None) -> str:
    return f"{ms:.3f} ms" + ("" if joules is None else f", {joules:.2f} J")
