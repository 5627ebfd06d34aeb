"""Writes the figures of results/*.json into README.md and docs, between markers, so that none is copied by hand.

`python -m benchmarks.quote` rewrites the documents; with `--check` it only says whether they are up to date (exit
code 1 if not).
"""

import argparse
import functools
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import quote_jobs, quote_layers, quote_service, quote_soak

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
DOCUMENTS = ("README.md", "docs/layers.md", "docs/mathematics.md", "docs/energy.md")
OUTPUT = re.compile(r"<!-- output: (?P<name>[a-z_]+) -->\n.*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"<!-- figures: (?P<name>[a-z0-9_.]+) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> int:
    """Rewrites or checks all documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something would")
    check = parser.parse_args().check
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        before = path.read_text()
        after = quoted(before)
        if after != before:
            stale.append(name)
            if not check:
                path.write_text(after)
    print(f"out of date: {', '.join(stale)}" if stale else "up to date")
    return 1 if stale and check else 0


def quoted(text: str) -> str:
    """The text with every marked block made anew: tables from JSON, a program's output as it was recorded."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        file = RESULTS / f"{name.partition('.')[0]}.json"
        shown = f"Not measured yet: benchmarks/results has no {file.name}."
        if file.exists():
            shown = TABLES[name](json.loads(file.read_text()))
        return f"<!-- figures: {name} -->\n{shown}\n<!-- end -->"

    def output(match: re.Match[str]) -> str:
        shown = (RESULTS / f"{match['name']}.txt").read_text().rstrip()
        return f"<!-- output: {match['name']} -->\n```\n{shown}\n```\n<!-- end -->"

    return OUTPUT.sub(output, BLOCK.sub(block, text))


def origin(result: dict[str, Any]) -> str:
    """Where the figures of a result come from, in one line."""
    card = (
        f"{result['cards']} x {result['card']}, driver {result['driver']}" if "card" in result else "no GPU"
    )
    return f"{card}, torch {result['torch']}, {result['date'][:10]}, `{result['command']}`"


def ghost_exchange(result: dict[str, Any]) -> str:
    """Microseconds per exchange."""
    kinds = {
        "all-gather": ("nccl_all_gather", "fused_gather"),
        "reduce-scatter": ("nccl_reduce_scatter", "fused_reduce"),
        "all-reduce of (k, b)": ("nccl_all_reduce", "fused_sum"),
    }
    # Sums are fused since later than the others.
    kinds = {kind: sides for kind, sides in kinds.items() if f"{sides[1]}_us" in result["rows"][0]}
    heads = " | ".join(f"{kind}: NCCL | fused" for kind in kinds)
    lines = [f"| b, k, p | {heads} |", "|---" * (1 + 2 * len(kinds)) + "|"]
    for row in result["rows"]:
        cells = [f"{row[f'{side}_us']:.1f} µs" for sides in kinds.values() for side in sides]
        lines.append(f"| {row['b']}, {row['k']}, {row['p']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Medians over rounds, inside a CUDA graph. {origin(result)}."])


def service(result: dict[str, Any]) -> str:
    """Ghostwatt beside MLflow, and alone."""
    return quote_service.service(result, _machine(of_all_commands(result)))


def _machine(result: dict[str, Any]) -> str:
    versions = {row["version"] for row in result["rows"] if row.get("server") == "mlflow"}
    peer = "".join(f", MLflow {version}" for version in sorted(versions))
    return f"{result['cpus']} cores, Python {result['python']}{peer}, {result['date'][:10]}, `{result['command']}`"


def of_all_commands(result: dict[str, Any]) -> dict[str, Any]:
    """The same with the commands of all its rows, where they were made by several."""
    commands = dict.fromkeys(row.get("command", result["command"]) for row in result["rows"])
    return result | {"command": "`, `".join(commands)}


def figure(_: dict[str, Any]) -> str:
    """What `benchmarks.figure` drew."""
    return "![J per training step of every layout against column/row's](benchmarks/results/layers.svg)"


def step_table(table: Callable[[list[dict[str, Any]]], str], result: dict[str, Any]) -> str:
    """A table of training steps, and where it comes from."""
    return f"{table(result['rows'])}\n\n{origin(of_all_commands(result))}."


def startup(result: dict[str, Any]) -> str:
    """Medians of the wait for the first step."""
    names = {
        "bare": "a bare TorchTrainer job",
        "cold": "an experiment, its own worker group",
        "warm": "an experiment, in the group that the last one left",
    }
    lines = [
        "| | submit → first step | queued | cluster | start-up | set-up |",
        "|---|---|---|---|---|---|",
    ]
    for side, name in names.items():
        rows = [row for row in result["rows"] if row["side"] == side]
        cells = [
            f"{statistics.median(row[part] for row in rows):.1f} s" if part in rows[0] else ""
            for part in ("first_step_s", "queued_s", "cluster_s", "start_up_s", "set_up_s")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rounds = 1 + max(row["round"] for row in result["rows"])
    return "\n".join([*lines, "", f"Medians over {rounds} rounds, {result['cpus']} cores. {origin(result)}."])


def hostile(result: dict[str, Any]) -> str:
    """What became of hostile requests, by status class."""
    rows = result["rows"]
    classes = ("2", "4", "5")
    lines = ["| requests | answers | 2xx | 4xx | 5xx | longest |", "|---|---|---|---|---|---|"]
    for row in rows:
        counts = [
            sum(count for status, count in row["statuses"].items() if status.startswith(first))
            for first in classes
        ]
        cells = " | ".join(f"{count:,}" for count in (row["answers"], *counts))
        lines.append(f"| {row['kind']} | {cells} | {row['longest_ms']:,.0f} ms |")
    total = sum(row["answers"] for row in rows)
    faults = sum(row["faults"] for row in rows)
    said = (
        f"{total:,} answers, the longest after {max(row['longest_ms'] for row in rows):,.0f} ms; {faults} were no "
        "answer as it should be (a 5xx, ten seconds or more, a refusal that is no problem document)"
    )
    return "\n".join([*lines, "", f"{said}. {_machine(result)}."])


def meters(result: dict[str, Any]) -> str:
    """Ghostwatt's meter against others on the same windows; what parts were not run is left out."""
    rows = result["rows"]
    (setting,) = [row for row in rows if row["measured"] == "setting"]
    lines = ["| what | result |", "|---|---|"]
    for row in rows:
        if row["measured"] == "agreement":
            version = setting["versions"].get(row["peer"], "")
            difference = row["largest_difference_percent"]
            told = "no window that both could read"
            if difference is not None:
                bound = row["our_bound_percent"]
                how = "within" if abs(difference) <= bound else "more than"
                told = f"{abs(difference):.1g} % apart at most, {how} our ± {bound:.1f} %"
            windows = f"{row['windows']} window(s) of {row['window_s']:.0f} s"
            lines.append(f"| energy against {row['peer']} {version}, {windows} | {told} |")
        elif row["measured"] == "calls":
            lines.append(
                f"| the driver's own calls, medians of {row['calls']} | counter {row['counter_us_median']:,.1f} µs, "
                f"power {row['power_us_median']:,.1f} µs, both in one call {row['both_at_once_us_median']:,.1f} µs |"
            )
        elif row["measured"] == "cost":
            lines.append(
                f"| {row['tool']}: begin and end of a window {row['how']}, medians of {row['windows']} "
                f"| {row['begin_us_median']:,.1f} and {row['end_us_median']:,.1f} µs |"
            )
        elif row["measured"] == "cost ratio":
            begin, end = (
                f"{row[f'{edge}_ratio']:.3f} {_range(row[f'{edge}_ratio_95_percent'])}" for edge in EDGES
            )
            lines.append(f"| {row['tool']} over {row['peer']}, {row['how']} | begin {begin}, end {end} |")
        elif row["measured"] == "turn":
            lines.append(
                f"| {row['tool']}, beside {row['beside']}: a training window and the evaluation after it, medians of "
                f"{row['pairs']} | {row['us_median']:,.1f} µs |"
            )
        elif row["measured"] == "turn ratio":
            told = f"{row['ratio']:.3f} {_range(row['ratio_95_percent'])}"
            lines.append(f"| {row['tool']} over {row['peer']}, training and evaluation | {told} |")
        elif row["measured"] == "sampler":
            interval = _range(
                [None if each is None else each / 100 for each in row["interval_95_percent"]], "+.2%"
            )
            lines.append(
                f"| step time with the sampler against without, {row['pairs_of_blocks']} pairs of {row['block_s']:g} s "
                f"| {row['step_time_change_percent']:+.2f} % {interval} |"
            )
    board = "a scripted board" if setting["scripted_board"] else setting["board"]
    told = origin(of_all_commands(result | {"rows": [row for row in rows if row is not setting]}))
    return "\n".join([*lines, "", f"On {board}, `{setting['method']}`. {told}."])


EDGES = ("begin", "end")


def _range(ends: list[float | None], form: str = ".3f") -> str:
    """A 95 % interval, or nothing where too few pairs gave none."""
    low, high = ends
    return "" if low is None or high is None else f"({low:{form}} to {high:{form}})"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "ghost_exchange": ghost_exchange,
    "ghost_exchange_two_h200": ghost_exchange,
    "main_job": functools.partial(quote_jobs.main_job, origin),
    "meters": meters,
    "meters_scripted": meters,
    "service": service,
    "hostile": hostile,
    "soak": lambda result: quote_soak.soak(result, _machine(of_all_commands(result))),
    "startup": startup,
    "layers.figure": figure,
    **{name: functools.partial(step_table, table) for name, table in quote_layers.TABLES.items()},
}
"""How each result is shown; `file.part` is one of several tables of a file."""


if __name__ == "__main__":
    sys.exit(main())
