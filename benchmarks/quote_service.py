"""How the service's rows are shown: Ghostwatt beside MLflow and alone, each with what was asked of it."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.paired import paired_ratio

Row = dict[str, Any]
DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Figure:
    """One line of a table."""

    part: str
    """Part of the benchmark that gives it."""
    key: str
    """Its name in a row."""
    words: str
    """What it is."""
    shape: str
    """Format of a value."""
    target: float | None = None
    """What was asked, of a peer figure as a factor over MLflow; None where nothing was."""
    better: str = "less"
    """Whether `more` or `less` is better."""

    def reached(self, value: float) -> str:
        """Whether a value keeps to the target, in a word."""
        if self.target is None:
            return ""
        return "yes" if (value >= self.target if self.better == "more" else value <= self.target) else "no"

    @property
    def asked(self) -> str:
        """The target, in words."""
        if self.target is None:
            return ""
        return f"{'≥' if self.better == 'more' else '≤'} {self.shape.format(self.target)}"


PEER_FIGURES = (
    Figure("peers", "created_per_s", "runs created a second, 4 clients", "{:,.0f}", 15, "more"),
    Figure("peers", "points_per_s", "metric points stored a second, 4 clients", "{:,.0f}", 25, "more"),
    Figure("peers", "history_p50_ms", "a history of 16,000 points, ms", "{:,.0f}", 10),
    Figure("peers", "search_p50_ms", "a hundred runs by tag, ms", "{:,.0f}"),
)
"""Targets: factors over MLflow in the same rounds. Where they were set MLflow 3.17 made 19 runs and stored 1,770 points
a second on SQLite, and took 1.0 s for the history."""
OWN_FIGURES = (
    Figure(
        "floor",
        "answers_per_s",
        "answers a second of a FastAPI route that stores nothing, 4 clients",
        "{:,.0f}",
    ),
    Figure("submit", "p99_ms", "submit to 202 at 100 a second, p99", "{:,.1f} ms", 25),
    Figure(
        "archive", "comparison_p99_ms", "comparison among ten million power samples, p99", "{:,.1f} ms", 50
    ),
    Figure("archive", "power_plot_p99_ms", "a run's power, p99", "{:,.1f} ms", 100),
    Figure("archive", "long_power_plot_p99_ms", "power of a run with half of them, p99", "{:,.1f} ms", 100),
    Figure("archive", "samples_per_s_on_empty", "power samples stored a second, empty tables", "{:,.0f}"),
    Figure("archive", "samples_per_s_on_full", "the same, full tables", "{:,.0f}"),
    Figure("start", "import_s", "`import api.app`", "{:.2f} s"),
    Figure("start", "to_ready_s", "from the command to an answer", "{:.2f} s", 1.5),
)


def service(result: dict[str, Any], origin: str) -> str:
    """Both servers, then what only Ghostwatt was asked; whether a target is reached is said of the median.

    Args:
        result: What `benchmarks.service` wrote.
        origin: Where the figures come from.
    """
    rows = result["rows"]
    lines = ["| | database | Ghostwatt | MLflow | | asked | reached |", "|---|---|---|---|---|---|---|"]
    peers = [row for row in rows if row["part"] == "peers"]
    lines += [
        _peer_line(figure, database, [row for row in peers if row["database"] == database])
        for figure in PEER_FIGURES
        for database in dict.fromkeys(row["database"] for row in peers)
    ]
    own = ["| Ghostwatt alone | SQLite | PostgreSQL | asked | reached |", "|---|---|---|---|---|"]
    own += [_own_line(figure, partial(_values, rows, figure)) for figure in OWN_FIGURES]
    own.append(_own_line(KEPT, lambda database: _shares(rows, database, "archive", _kept)))
    own.append(_watched_line(rows))
    return "\n".join([*lines, "", *own, "", f"Medians (and range) over rounds. {origin}."])


KEPT = Figure(
    "archive",
    "",
    "power samples stored a second into full tables, of what empty ones take",
    "{:.0f} %",
    80,
    "more",
)
WATCHED = Figure("watchers", "", "what fifty live streams cost of the submissions a second", "{:.1f} %", 10)


def _peer_line(figure: Figure, database: str, rows: list[Row]) -> str:
    found = [
        [row[figure.key] for row in rows if row["server"] == server] for server in ("ghostwatt", "mlflow")
    ]
    ours, theirs = (statistics.median(values) for values in found)
    factor = ours / theirs if figure.better == "more" else theirs / ours
    cells = [with_range(values, figure.shape) for values in found]
    wished, reached = "", ""
    if figure.target is not None:
        wished, reached = f"≥ {figure.target:g} x", "yes" if factor >= figure.target else "no"
    return f"| {figure.words} | {database} | {' | '.join(cells)} | {factor:.1f} x | {wished} | {reached} |"


def _own_line(figure: Figure, values_of: Callable[[str], list[float]]) -> str:
    found = [values_of(database) for database in DATABASES]
    cells = [with_range(values, figure.shape) if values else "not run" for values in found]
    reached = [figure.reached(statistics.median(values)) if values else "not run" for values in found]
    said = reached[0] if reached[0] == reached[1] else ", ".join(reached)
    return f"| {figure.words} | {' | '.join(cells)} | {figure.asked} | {said if figure.target else ''} |"


def _values(rows: list[Row], figure: Figure, database: str) -> list[float]:
    return [row[figure.key] for row in rows if row["part"] == figure.part and row["database"] == database]


def _shares(rows: list[Row], database: str, part: str, share: Callable[[list[Row]], float]) -> list[float]:
    found = [row for row in rows if row["part"] == part and row["database"] == database]
    return [share(found)] if found else []


def _kept(rows: list[Row]) -> float:
    share: float = statistics.median(
        row["samples_per_s_on_full"] / row["samples_per_s_on_empty"] for row in rows
    )
    return 100 * share


def _watched_line(rows: list[Row]) -> str:
    """The share that streams cost, from pairs: it is reached or missed only if the whole interval is."""
    cells, said = [], []
    for database in DATABASES:
        found = [row for row in rows if row["part"] == "watchers" and row["database"] == database]
        if not found:
            cells.append("not run")
            said.append("not run")
            continue
        watched, alone = (
            [row["created_per_s"] for row in found if bool(row["streams"]) is with_streams]
            for with_streams in (True, False)
        )
        kept = paired_ratio(watched, alone)
        cost = 100 * (1 - kept.ratio)
        if kept.low is None or kept.high is None:
            cells.append(f"{cost:.1f} % ({kept.pairs} pairs: no interval)")
            said.append("too few pairs")
            continue
        least, most = 100 * (1 - kept.high), 100 * (1 - kept.low)
        cells.append(f"{cost:.1f} % ({least:.1f} to {most:.1f}, {kept.pairs} pairs)")
        ends = {WATCHED.reached(end) for end in (least, most)}
        said.append(ends.pop() if len(ends) == 1 else "not shown")
    reached = said[0] if said[0] == said[1] else ", ".join(said)
    return f"| {WATCHED.words} | {' | '.join(cells)} | {WATCHED.asked} | {reached} |"


def with_range(values: list[float], shape: str) -> str:
    """The median, and the range where there is more than one."""
    middle = shape.format(statistics.median(values))
    if len(values) == 1:
        return middle
    number = shape.split("}")[0] + "}"
    return f"{middle} ({number.format(min(values))} to {number.format(max(values))})"
