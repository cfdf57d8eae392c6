"""The pages of known faults and of threats name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_test_that_the_page_names_exists() -> None:
    """Every `file::name` is a function of that file, and no line of the table is without one."""
    page = (ROOT / "docs" / "known-faults.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert len(rows) > 20
    assert all(named)
    for file, name in {pair for row in named for pair in row}:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_each_defence_is_held_by_a_test_that_exists() -> None:
    """Each row of the tables of threats names a test file, a folder of tests or a pattern of files."""
    page = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    tables = [table for table in re.split(r"\n\n", page) if table.startswith("| attempt |")]
    rows = [row for table in tables for row in table.splitlines()[2:]]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`(?:tests/)?([\w*/]*test_[\w*]+\.py|fuzz)`", row.rsplit("|", 2)[1])
        assert tests, row
        for name in tests:
            assert list((ROOT / "tests").glob(f"**/{name}")), name
