"""The server under libFuzzer, for a short time; `make fuzz` does it for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import PATIENCE

FUZZER = Path(__file__).parents[1] / "fuzz" / "server_requests.py"


def test_hostile_requests_find_nothing(tmp_path: Path) -> None:
    """No request makes an answer of 5xx, a traceback, or shows a secret, in its answer or in the log."""
    pytest.importorskip("atheris")
    ran = subprocess.run(
        [sys.executable, str(FUZZER), "-runs=3000", "-seed=16", "-max_len=600"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout[-3000:]
    assert "Done 3000 runs" in ran.stderr
