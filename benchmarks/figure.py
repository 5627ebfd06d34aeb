"""Draws results/layers.json as results/layers.svg: J per step of every arm against column/row's, a panel for each size.

    python -m benchmarks.figure

Plain SVG, written by hand: four panels of bars are less than any drawing library would weigh.
"""

import argparse
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.step_arms import BASELINE

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
WIDTH, LEFT, RIGHT = 760, 190, 130
BAR, GAP, HEAD = 18, 7, 34
COLOURS = {"tensor": "#7f8c9b", "phantom": "#1b7f5c"}
OTHER_COLOUR = "#b8a26a"


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=Path, default=RESULTS / "layers.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "layers.svg")
    options = parser.parse_args()
    options.out.write_text(drawn(json.loads(options.layers.read_text())))


def drawn(document: Row) -> str:
    """The figure.

    Args:
        document: As `layers.py` wrote it.
    """
    rows = [row for row in document["rows"] if row["measured"] == "arm" and row.get("j_per_step")]
    p = max((row["p"] for row in rows), default=1)
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row["p"] == p and row["k"] == 64:
            title = f"n = {row['n']}, L = {row['depth']}, k = {row['k']}, b = {row['b']}"
            panels.setdefault(title, []).append(row)
    parts: list[str] = []
    y = 52
    for title, own in panels.items():
        parts.append(f'<text x="{LEFT}" y="{y + 16}" font-weight="bold">{escape(title)}</text>')
        y += HEAD - GAP
        for row in own:
            parts += _bar(row, own, y)
            y += BAR + GAP
        y += GAP
    card = f"{document['cards']} x {document['card']}" if "card" in document else "no GPU"
    head = [
        f'<text x="16" y="24" font-size="15" font-weight="bold">Joules per training step on {p} ranks, '
        "as a share of column/row's</text>",
        f'<text x="16" y="42" fill="#555">{escape(card)}, torch {escape(document["torch"])}, '
        f"{escape(document['date'][:10])}; 95 % intervals over paired rounds</text>",
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8}" '
            f'viewBox="0 0 {WIDTH} {y + 8}" font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{y + 8}" fill="white"/>',
            *head,
            *parts,
            "</svg>\n",
        ]
    )


def _bar(row: Row, panel: Sequence[Row], y: int) -> list[str]:
    largest = max(_share(each)[2] for each in panel)
    per_unit = (WIDTH - LEFT - RIGHT) / largest
    share, low, high = _share(row)
    end = LEFT + share * per_unit
    colour = COLOURS.get(row["strategy"], OTHER_COLOUR)
    middle = y + BAR / 2
    label = f"{share:.2f}  ({row['j_per_step']:.2f} J, {row['ms_per_step']:.2f} ms)"
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(row["arm"])}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{share * per_unit:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<line x1="{LEFT + low * per_unit:.1f}" x2="{LEFT + high * per_unit:.1f}" y1="{middle}" y2="{middle}" '
        'stroke="#222" stroke-width="1.5"/>',
        f'<text x="{max(end, LEFT + high * per_unit) + 6:.1f}" y="{middle + 4}">{escape(label)}</text>',
    ]


def _share(row: Row) -> tuple[float, float, float]:
    """Share of the baseline's joules, and its interval; the baseline's own is 1."""
    ratio = row.get("energy_ratio")
    if row["arm"] == BASELINE or not ratio:
        return 1.0, 1.0, 1.0
    return ratio["ratio"], ratio["low"], ratio["high"]


if __name__ == "__main__":
    main()
