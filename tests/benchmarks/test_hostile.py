"""The benchmark of hostile requests, at a hundredth of its size, and what it counts as a fault."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hostile import Answer, fault_of
from benchmarks.http_load import Ask

ROOT = Path(__file__).parent.parent.parent
PROBLEM = "application/problem+json"


def test_a_hundred_hostile_requests_are_answered_as_they_should_be(tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.hostile",
            "--cases",
            "100",
            "--longest-s",
            "60",
            "--out",
            str(out),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = json.loads(out.read_text())["rows"]
    assert sum(row["answers"] + row["unsendable"] for row in rows) >= 100
    assert {"described, valid", "described, invalid", "events nearly right"} <= {row["kind"] for row in rows}
    assert not any(row["server_errors"] for row in rows)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(200, "text/plain", b"", 0.1), None),
        (Answer(500, PROBLEM, b'{"detail": "x"}', 0.1), "status 500"),
        (Answer(200, "text/plain", b"", 11.0), "11.0 s"),
        (Answer(404, "text/plain", b"gone", 0.1), "status 404 as 'text/plain'"),
        (Answer(404, PROBLEM, b'{"detail": ""}', 0.1), "a problem without a detail"),
        (Answer(404, PROBLEM, b'{"detail": "gone"}', 0.1), None),
    ],
)
def test_what_counts_as_a_fault(answer: Answer, fault: str | None) -> None:
    assert fault_of(Ask("GET", "/"), answer) == fault
