"""The pages of known faults and of threats name what tests hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_line_of_the_page_has_tests_that_exist() -> None:
    """Every line has its tests in `known_faults.toml`, and every `file::name` there is a function of that file."""
    page = (ROOT / "docs" / "known-faults.md").read_text(encoding="utf-8").partition("## Limits")[0]
    known = tomllib.loads((Path(__file__).parent / "known_faults.toml").read_text(encoding="utf-8"))
    lines = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")]
    assert len(lines) > 20
    assert sorted(known) == sorted(lines)
    for file, name in {tuple(test.split("::")) for fault in known.values() for test in fault["tests"]}:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
    assert all(fault["tests"] for fault in known.values())


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
