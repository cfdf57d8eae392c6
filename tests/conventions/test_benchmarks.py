"""Benchmarks that the Makefile offers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def dry_run(what: str) -> subprocess.CompletedProcess[str]:
    """Return what `make bench WHAT=...` would run."""
    command = ["make", "--dry-run", "-f", str(MAKEFILE), "bench", f"WHAT={what}"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_an_unknown_benchmark_is_refused_with_the_names_of_all() -> None:
    """The error, `make help` and the Makefile list the same names, and each of them runs a module of tests/bench."""
    text = MAKEFILE.read_text()
    names = re.findall(r"^BENCH_([a-z]+) ", text, re.MULTILINE)
    refused = dry_run("nonsense")
    assert refused.returncode != 0
    assert f"unknown WHAT=nonsense; use one of: {' '.join(names)}." in refused.stderr
    assert f"make bench WHAT={'|'.join(names)}." in text
    for name in names:
        (module,) = re.findall(r"-m bench\.(\w+)", dry_run(name).stdout)
        assert (ROOT / "tests" / "bench" / f"{module}.py").exists()


def test_without_a_name_telemetry_and_tool_search_are_measured() -> None:
    """`make bench` alone compares telemetry with the same by hand, and measures the search for tools."""
    assert re.findall(r"-m bench\.(\w+)", dry_run("").stdout) == ["iteration", "tool_search"]
