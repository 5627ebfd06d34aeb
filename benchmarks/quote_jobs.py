"""How `results/main_job.json` is shown: verdicts of whole experiments on boards, a cancelled one and a killed rank."""

from collections.abc import Callable
from typing import Any

TITLES = {
    "demo": "The demo's experiment",
    "wide": "`benchmarks/specs/wide.yaml` (n = 16384, 8 layers)",
}
"""What the experiments are that end in a comparison."""


def main_job(origin: Callable[[dict[str, Any]], str], result: dict[str, Any]) -> str:
    """A table for each experiment and number of ranks, then what became of the cancelled and the killed."""
    rows = result["rows"]
    tables = [_verdicts(origin, row) for row in rows if row["experiment"] in TITLES]
    told = [_told(origin, row) for row in rows if row["experiment"] not in TITLES]
    return "\n\n".join([*tables, *told])


def _verdicts(origin: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> str:
    comparison = row["comparison"]
    primary = comparison["primary_metric"]
    metrics = dict.fromkeys([primary, "energy_per_step_mj"])
    names = [comparison["baseline"], *(arm["arm"] for arm in comparison["arms"])]
    words = {"energy_to_target_mj": "J to the target loss", "energy_per_step_mj": "J per step"}
    shown = [words.get(metric, metric) for metric in metrics]
    head = " | ".join(f"{word} | against the baseline" for word in shown)
    lines = [f"| arm | {head} | flags |", "|---|" + "---|---|" * len(shown) + "---|"]
    answers = {arm["arm"]: {m["metric"]: m for m in arm["metrics"]} for arm in comparison["arms"]}
    for name in names:
        runs = [run for run in row["runs"] if run["arm"] == name]
        cells = []
        flags: dict[str, None] = {}
        for metric in metrics:
            answer = answers.get(name, {}).get(metric)
            cells += [_mean_j(runs, metric), answer["sentence"] if answer else "baseline"]
            flags |= dict.fromkeys(answer["flags"] if answer else [])
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(f'`{flag}`' for flag in flags)} |")
    title = f"{TITLES[row['experiment']]} on {row['ranks']} boards, method `{comparison['method']}`:"
    return "\n".join([title, "", *lines, "", f"{origin(row['origin'])}."])


def _told(origin: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> str:
    freed_s = row.get("seconds_until_boards_free")
    boards = f"processes left on {row['ranks']} boards at that moment: {len(row['processes_on_boards'])}"
    if freed_s is not None and row["processes_on_boards"]:
        boards += f", none {freed_s:.1f} s later"
    if row["experiment"] == "cancel":
        said = f"Cancelled in mid-run: {row['state']} {row['seconds_until_cancelled']:.1f} s later"
    else:
        spent = "; ".join(f"{attempt['arm']}, {_attempt(attempt)}" for attempt in row["attempts"])
        said = f"A rank killed in mid-run: {row['state']} {row['seconds_until_ended']:.1f} s later ({spent})"
    return f"{said}; {boards}. {origin(row['origin'])}."


def _attempt(attempt: dict[str, Any]) -> str:
    parts = [
        f"attempt {attempt['attempt']} {attempt['outcome']}",
        f"{_joules(attempt['energy_mj'])} in windows",
    ]
    if attempt["energy_interrupted_mj"] is not None:
        parts.append(f"{_joules(attempt['energy_interrupted_mj'])} after them (estimate)")
    return " ".join([parts[0] + ":", " and ".join(parts[1:])])


def _joules(energy_mj: float | None) -> str:
    return "energy unknown" if energy_mj is None else f"{energy_mj / 1000:,.0f} J"


def _mean_j(runs: list[dict[str, Any]], metric: str) -> str:
    values = [run[metric] for run in runs if run.get(metric) is not None]
    return f"{sum(values) / len(values) / 1000:,.2f}" if values else "unknown"
