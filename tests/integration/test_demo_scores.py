"""`pellucid demo scores`, as its users run it."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from pellucid_exporters import StoreReader
from support.processes import PATIENCE, python
from support.prometheus_server import program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

MAIN = "import sys; from pellucid.cli import main; sys.exit(main())"


def run_demo(folder: Path, **variables: str) -> str:
    """Run the demo to its end, and return what it prints into a pipe."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
    command = python("-c", MAIN, "demo", "scores", "--no-color")
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout


def test_a_worse_prompt_is_found_and_its_fix_proven(tmp_path: Path) -> None:
    """Scores fall with the second version; an experiment names the questions, and proves the third. No alert here."""
    shown = run_demo(tmp_path, PATH="/nowhere")
    assert "1.00 of right_price, 48 runs" in shown
    assert "0.42 of right_price, 48 runs" in shown
    assert "Prometheus is not installed here" in shown
    assert "What does the rug cost? The rug costs 60 euros. (the catalogue has 66 euros)" in shown
    assert "REGRESSION" in shown
    assert "version 3 has 1.00, as version 1: proven" in shown
    store = StoreReader(tmp_path / ".pellucid" / "telemetry.db")
    assert {run.version for run in store.runs(limit=500)} == {"1", "2", "3"}


@pytest.mark.prometheus
def test_the_alert_fires_in_prometheus(tmp_path: Path) -> None:
    """It names the score, the agent and its version, and the trace of a bad run."""
    program("prometheus")
    shown = run_demo(tmp_path)
    assert "Agent shop version 2 (shop): the mean of its score right_price in 6s" in shown
    [trace_id] = re.findall(r"a bad run +trace (\w{32})", shown)
    reader = StoreReader(tmp_path / ".pellucid" / "telemetry.db")
    [run] = [run for run in reader.runs(limit=500) if run.trace_id == trace_id]
    assert run.version == "2"
