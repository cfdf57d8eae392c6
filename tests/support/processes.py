"""Scripts that tests run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent


def run_python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; it must succeed."""
    finished = subprocess.run(
        command(script, *arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


def command(script: str, *arguments: object) -> list[str]:
    """Return the command for a script, which finds `arguments` in `sys.argv`."""
    return [sys.executable, "-W", "error", "-c", dedent(script), *map(str, arguments)]
