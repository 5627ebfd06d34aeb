"""The soak runs, kills what it is to kill, and finds nothing stuck."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_a_short_soak_ends_with_nothing_stuck(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    arguments = ["--experiments", "10", "--minutes", "3", "--fault-every-s", "2", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["database"] == "sqlite"
    assert row["experiments"] >= 10
    assert sum(row["states"].values()) == row["experiments"]
    assert [at["ended"] for at in row["samples"]] == sorted(at["ended"] for at in row["samples"])
    assert row["problem"] is None
