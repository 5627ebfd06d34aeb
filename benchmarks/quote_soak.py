"""How a soak's rows are shown: what was killed, what became of the experiments, what the service's memory did."""

import statistics
from typing import Any

Row = dict[str, Any]


def soak(result: dict[str, Any], origin: str) -> str:
    """One line for each database.

    Args:
        result: What `benchmarks.soak` wrote.
        origin: Where the figures come from.
    """
    lines = [
        "| database | experiments | killed: service, Ray, jobs | ended otherwise than succeeded or cancelled "
        "| stuck or lost rows | memory: first, last | trend |",
        "|---|---|---|---|---|---|---|",
        *(_line(row) for row in result["rows"]),
    ]
    minutes = ", ".join(f"{row['minutes']:.0f}" for row in result["rows"])
    said = (
        "Memory is the resident set of a service that nobody kills any more, from its first sample on; the trend is "
        f"its slope over a thousand experiments. {minutes} minutes"
    )
    return "\n".join([*lines, "", f"{said}. {origin}."])


def _line(row: Row) -> str:
    killed = row["faults"]
    others = {
        state: number
        for state, number in row["states"].items()
        if not state.startswith(("succeeded", "cancelled"))
    }
    shown = ", ".join(f"{number} {state}" for state, number in others.items()) or "none"
    cells = [
        row["database"],
        f"{row['experiments']:,}",
        ", ".join(str(killed.get(what, 0)) for what in ("services", "heads", "jobs")),
        shown,
        "none" if row["problem"] is None else str(row["problem"]).splitlines()[0],
        *memory(row["samples"]),
    ]
    return f"| {' | '.join(cells)} |"


def memory(samples: list[Row]) -> tuple[str, str]:
    """First and last resident set of the last service, and its trend over a thousand experiments."""
    last = _of_the_last_service(samples)
    if len(last) < 3:
        return "unknown", "unknown"
    ended, rss_mib = [at["ended"] for at in last], [at["rss_mib"] for at in last]
    slope, _ = statistics.linear_regression(ended, rss_mib)
    return f"{rss_mib[0]:.0f}, {rss_mib[-1]:.0f} MiB", f"{1000 * slope:+.1f} MiB"


def _of_the_last_service(samples: list[Row]) -> list[Row]:
    """None where samples don't say whose they are."""
    last = samples[-1].get("pid") if samples else None
    return [sample for sample in samples if last is not None and sample.get("pid") == last]
