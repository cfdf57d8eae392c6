"""The benchmark of a fleet's telemetry, with a handful of runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.stack, pytest.mark.short]


@pytest.mark.usefixtures("built")
def test_the_fleet_is_measured_and_nothing_is_lost() -> None:
    """Every run is in Prometheus, and every span in Jaeger; the benchmark prints what that cost."""
    command = [sys.executable, "-m", "bench.fleet", "--rates=10", "--runs=100", "--processes=2", "--copies=3"]
    done = subprocess.run(
        [*command, "--compared=20"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs: 100 made, 100 in Prometheus" in done.stdout
    assert "spans: 2,400 made (24 a run), 2,400 taken by Jaeger" in done.stdout
    assert "traces: 1 of 1 that were looked for are whole in Jaeger" in done.stdout
    for name in ("processes", "otel-collector", "jaeger", "prometheus"):
        assert re.search(rf"^  {name} +\d+\.\d s of processors", done.stdout, re.MULTILINE)
    assert re.search(r"bytes of a run: logs [\d,]+, traces [\d,]+", done.stdout)
    assert re.search(r"^Jaeger, stopped: [\d,]+ bytes on disk, [1-9][\d,]* a span$", done.stdout, re.MULTILINE)
    assert re.search(r"and [1-9][\d,]* series: \d+\.\d bytes a sample$", done.stdout, re.MULTILINE)
