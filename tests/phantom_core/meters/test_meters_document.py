"""docs/meters.md names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent.relative_to(ROOT)
ROW = re.compile(r"^\| (?!claim|---)(?P<claim>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<test>test_\w+)`")


def test_every_claim_is_held_by_tests_that_exist() -> None:
    rows = list(ROW.finditer((ROOT / "docs" / "meters.md").read_text()))
    assert len(rows) > 40
    missing = []
    for row in rows:
        named = list(NAMED.finditer(row["tests"]))
        assert len(named) == row["tests"].count("`") // 2, row["tests"]
        assert named, row["claim"]
        for test in named:
            path = ROOT / (test["file"] if "/" in test["file"] else HERE / test["file"])
            if not path.exists() or f"def {test['test']}(" not in path.read_text():
                missing.append(f"{test['file']}::{test['test']}")
    assert missing == []
