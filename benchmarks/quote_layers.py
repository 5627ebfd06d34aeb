"""Tables of `layers.py`, as `quote.py` puts them into the documents."""

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import quote_parts
from benchmarks.memory_rate import MEMORY_BURST, memory_rate

Row = dict[str, Any]
BYTES_PER_FLOP = 3 * 2 / (2 * 8192)
"""Of the ceiling's GEMM, three bfloat16 matrices of 8192 rows: for files from before it was written down."""


def sizes(rows: list[Row]) -> str:
    """Every arm at every size that the largest number of ranks measured at its usual ghosts."""
    lines = [
        "| n, L, k, b | arm | J per step | of column/row's | ms per step | of column/row's | W a board | "
        "peak GB a rank | GEMM roofline | exposed communication | largest roofline term | joules at the limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    p = max(row["p"] for row in _arms(rows))
    shown = [(row, setting) for row, setting in _with_settings(rows) if row["p"] == p and row["k"] == 64]
    for row, setting in shown:
        size = f"{row['n']}, {row['depth']}, {row['k']}, {row['b']}"
        lines.append(f"| {size} | {_name(row)} | {' | '.join([*_cells(row), _at_limit(row, setting)])} |")
    arms, settings = [row for row, _ in shown], [setting for _, setting in shown]
    rounds = " or ".join(str(count) for count in dict.fromkeys(setting["rounds"] for setting in settings))
    return "\n".join(
        [
            *lines,
            "",
            f"All {p} ranks' boards together, `{_methods(rows)}`; ± is the bound of a window's reading, "
            f"[ ] a 95 % interval over {rounds} paired rounds (the outer one of Student's and a bootstrap's, of "
            f"log-ratios), which leaves that bound out. {_limit(settings)}"
            f"GEMM roofline: share of {_of_each(shown, _gemm_ceiling)}, of large GEMMs in the same run. "
            "Exposed communication: what the arm is faster by with its collectives replaced by local "
            f"copies{_pairs(arms)}. {_unmeasured(arms)}Largest roofline term: ms per step as a multiple of the "
            "largest of GEMM FLOPs, least memory traffic and bytes sent over their rates in the same "
            f"run{_memory(shown)}. Joules at the limit (an estimate): ms per step as a multiple of the time in "
            "which a board at its power limit is given the joules that the step's GEMMs and least memory traffic "
            "took when each ran alone in the same run; around 1, only fewer joules would make the step faster.",
        ]
    )


def targets(rows: list[Row]) -> str:
    """What was aimed at, and whether it was reached."""
    lines = ["| n | phantom's | measured | target | |", "|---|---|---|---|---|"]
    for row in _arms(rows):
        for target in row.get("targets", []):
            shown = f"{target['value']:.2f}"
            if target["high"] is None:
                shown += " [unknown]"
            elif target["low"] != target["high"]:
                shown += f" [{target['low']:.2f}, {target['high']:.2f}]"
            lines.append(
                f"| {row['n']} | {target['what']} | {shown} | ≤ {target['limit']:.2f} | {target['verdict']} |"
            )
    if len(lines) == 2:
        return "No target stands for the sizes and boards measured."
    return "\n".join(
        [
            *lines,
            "",
            "[ ] of joules: the 95 % interval over paired rounds, widened by what the readings of both arms may be off "
            "by at worst; undecided: the target lies in it.",
        ]
    )


def sweep(rows: list[Row], letter: str) -> str:
    """Phantom and its baseline over k or p, other things equal."""
    names = {"phantom", "tensor column/row", "block-diagonal", "dense"}
    own = [row for row in _arms(rows) if row["arm"] in names]
    others = [key for key in ("n", "depth", "k", "b", "p") if key != letter]

    def key(row: Row) -> tuple[Any, ...]:
        # One rank has no ghosts to vary.
        return tuple(row[name] for name in others)

    varied = {key(row) for row in own if len({each[letter] for each in own if key(each) == key(row)}) > 1}
    lines = [
        "| n, L, k, b, p | arm | J per step | of column/row's | ms per step | of column/row's |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted((row for row in own if key(row) in varied), key=lambda row: (key(row), row[letter])):
        size = ", ".join(str(row[name]) for name in ("n", "depth", "k", "b", "p"))
        lines.append(f"| {size} | {_name(row)} | {' | '.join(_cells(row)[:4])} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet."


def _arms(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["measured"] == "arm"]


def _name(row: Row) -> str:
    return f"{row['arm']} (no CUDA graph)" if row["step_mode"] == "eager" else str(row["arm"])


def _cells(row: Row) -> list[str]:
    if "ms_per_step" not in row:
        return [f"not measured: {row['reason']}", *[""] * 8]
    bound = row["j_per_step_bound"]
    joules = "unknown" if row["j_per_step"] is None else f"{row['j_per_step']:.2f}"
    peak = row["peak_memory_bytes"]
    return [
        joules if bound is None else f"{joules} ± {bound:.2f}",
        _ratio(row, "energy_ratio"),
        f"{row['ms_per_step']:.2f}",
        _ratio(row, "time_ratio"),
        "unknown" if row["j_per_step"] is None else f"{_power_w(row):.0f}",
        "unknown" if peak is None else f"{peak / 1e9:.1f}",
        f"{row['gemm_roofline_share']:.0%}",
        _exposed(row),
        f"{row['times_floor']:.2f} x {row['floor']['bound']}",
    ]


def _power_w(row: Row) -> float:
    """Watts of a board: the mean of its rounds, each of which has joules and milliseconds of its own."""
    return statistics.fmean(
        1_000 * each["j_per_step"] / each["ms_per_step"] / row["p"] for each in row["rounds"]
    )


def _exposed(row: Row) -> str:
    """The share of a step that communication took, as it came out; none only where there is one rank."""
    share, low, high = (row.get(f"exposed_share{end}") for end in ("", "_low", "_high"))
    if share is None:
        return "none" if row["p"] == 1 else "unknown"
    return f"{share:.0%}" if low is None or high is None else f"{share:.0%} [{low:.0%}, {high:.0%}]"


def _is_unmeasured(row: Row) -> bool:
    return row["strategy"] == "block_diagonal" and "ms_per_step" in row and _exposed(row) == "unknown"


def _unmeasured(rows: list[Row]) -> str:
    """Why a block-diagonal arm's communication is unknown in files from before it was measured."""
    if not any(_is_unmeasured(row) for row in rows):
        return ""
    return (
        "A block-diagonal arm's is unknown: hidden layers exchange nothing, "
        "the outputs' sum was not measured apart. "
    )


def _at_limit(row: Row, setting: Row) -> str:
    """How far a step is from what its joules take at the power limit."""
    if "ms_per_step" not in row:
        return ""
    least_ms = joules_at_limit_ms(row, setting)
    return "unknown" if least_ms is None else f"{row['ms_per_step'] / least_ms:.2f} x"


def joules_at_limit_ms(row: Row, setting: Row) -> float | None:
    """Milliseconds that a step's GEMMs and memory traffic take by their joules, at the board's power limit.

    With the power above idle that each drew alone, (e_gemm FLOPs + e_memory bytes) / (limit - idle). Of a GEMM's joules
    those of its own memory traffic are taken off, since the step's bytes hold it. An estimate: at the limit clocks are
    lower, and so are the joules of a FLOP.

    Args:
        row: An arm's.
        setting: The run's, with what its ceilings drew.

    Returns:
        The time; None where a power or rate is not known.
    """
    loads = {each["load"]: each for each in setting["ceilings"]}
    limit_w = setting.get("power_limit_w")
    powers = [loads.get(load, {}).get("power_w") for load in ("active", "gemm", "memory")]
    if limit_w is None or None in powers:
        return None
    idle_w, gemm_w, memory_w = powers
    operands = loads["gemm"].get("operand_bytes_per_s", BYTES_PER_FLOP * loads["gemm"]["flops_per_s"])
    j_per_byte = (memory_w - idle_w) / loads["memory"]["bytes_per_s"]
    j_per_flop = (gemm_w - idle_w - j_per_byte * operands) / loads["gemm"]["flops_per_s"]
    bytes_moved = row["floor"]["memory_ms"] / 1_000 * memory_rate(loads)
    joules = j_per_flop * row["flops_per_step_per_rank"] + j_per_byte * bytes_moved
    return float(1_000 * joules / (limit_w - idle_w))


def _pairs(rows: list[Row]) -> str:
    """How exposed communication was measured."""
    silent = [row["silent"] for row in rows if "exposed_share" in row]
    if not silent:
        return ""
    if all("pairs" in each for each in silent):
        return ", in pairs of windows, with Student's 95 % interval"
    return ", in one window after all rounds: without an interval, and off by about 1 % of the step where that was seen"


def _with_settings(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Every arm with the setting of its run: a file that was added to has several, each before its arms."""
    found, setting = [], {}
    for row in rows:
        if row["measured"] == "setting":
            setting = row
        elif row["measured"] == "arm":
            found.append((row, setting))
    return found


def _of_each(shown: list[tuple[Row, Row]], told: Callable[[Row], str]) -> str:
    """What is told of the runs' settings; where they differ, with the widths that it is true for."""
    widths: dict[str, dict[int, None]] = {}
    for row, setting in shown:
        widths.setdefault(told(setting), {})[row["n"]] = None
    if len(widths) == 1:
        return next(iter(widths))
    return " and ".join(f"{words} (n = {', '.join(map(str, own))})" for words, own in widths.items())


def _gemm_ceiling(setting: Row) -> str:
    rates = [each["flops_per_s"] for each in setting["ceilings"] if each["load"] in ("gemm", "gemm burst")]
    return f"{max(rates) / 1e12:.0f} TFLOP/s"


def _memory(shown: list[tuple[Row, Row]]) -> str:
    """What memory's ceiling was measured with."""

    def told(setting: Row) -> str:
        loads = {each["load"]: each for each in setting["ceilings"]}
        if MEMORY_BURST not in loads:
            return ""
        source = loads[MEMORY_BURST].get("from")
        where = "" if source is None else f", as `{source}` has it for such boards"
        return f"{memory_rate(loads) / 1e12:.2f} TB/s, of the optimizer's pass{where}"

    words = _of_each(shown, told)
    return f" (memory: {words})" if words else ""


def _limit(settings: list[Row]) -> str:
    limits = {float(row["power_limit_w"]) for row in settings if row.get("power_limit_w") is not None}
    if not limits:
        return ""
    shown = " or ".join(f"{limit:.0f}" for limit in sorted(limits))
    return f"A board that draws its limit, {shown} W, is as fast as its joules allow. "


def _ratio(row: Row, name: str) -> str:
    if name not in row:
        return "1" if row["p"] > 1 else ""
    ratio = row[name]
    return "unknown" if ratio is None else f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _methods(rows: list[Row]) -> str:
    found = dict.fromkeys(str(row["energy_method"]) for row in _arms(rows) if "energy_method" in row)
    return ", ".join(found)


_CARDS = ("", "_h100", "_h200", "_two_h200", "_two_h200_sweeps", "_two_h200_before", "_one_h200")
"""Files of results: the latest on four boards; on four H100s; on four H200s, other sizes; on two H200s, today's steps,
their sweeps and steps of before with each switch beside its other; on one."""
TABLES: dict[str, Callable[[list[Row]], str]] = {
    f"{name}{card}{part}": table
    for card in _CARDS
    for name, part, table in (
        ("layers", ".sizes", sizes),
        ("layers", ".targets", targets),
        ("layers", ".ghosts", lambda rows: sweep(rows, "k")),
        ("layers", ".ranks", lambda rows: sweep(rows, "p")),
        ("attribution", "", quote_parts.attribution),
        ("predictions", "", quote_parts.predictions),
    )
}
"""By block: a file of results, and which of its tables."""
