"""docs/faults.md names tests that exist, and every test of a fault."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FAULT_TESTS = ("tests/services/test_*_faults.py", "tests/services/test_service_killed.py")
NOT_FAULTS = {"test_the_clock_is_stepped_under_python_and_under_postgresql"}
"""What those files hold that shows no fault."""


def names_in(file: Path) -> set[str]:
    found = ast.parse(file.read_text()).body
    return {
        each.name for each in found if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    }


def named() -> set[tuple[str, str]]:
    return set(NAMED.findall((ROOT / "docs" / "faults.md").read_text()))


def test_every_fault_names_a_test_that_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    for row in rows[1:]:
        assert NAMED.search(row.split("|")[3]), f"no test in the row: {row}"
    assert [(file, test) for file, test in sorted(named()) if test not in names_in(ROOT / file)] == []


def test_every_test_of_a_fault_is_named() -> None:
    shown = {test for _, test in named()} | NOT_FAULTS
    files = [file for pattern in FAULT_TESTS for file in ROOT.glob(pattern)]
    assert len(files) > 5
    missing = {file.name: left for file in files if (left := names_in(file) - shown)}
    assert missing == {}
