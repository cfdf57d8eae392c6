"""Run the programs of `docs/migrating.md`, each with the packages that its first line names.

`make test-migrating`; `make test-migrating ARGS="--telemetry"` prints what each records of a hub that takes half a
second to list its tools. Environments are kept in a folder of the user's cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.caches import cache

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "migrating.md"
CACHE: Final = cache("migrating")
OTHERS: Final = ["opentelemetry-sdk", "mcp-server-time"]
SERVER: Final = '"-m", "mcp_server_time"'
SLOW: Final = f'"{ROOT / "tests" / "support" / "slow_hub.py"}"'
PROGRAM: Final = re.compile(
    r"^```py(?:thon)?\n(# pip install (?P<packages>[^\n]*)\n.*?)^```$", re.MULTILINE | re.DOTALL
)
LANGSMITH: Final = {
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_OTEL_ENABLED": "true",
    "LANGSMITH_OTEL_ONLY": "true",
    "LANGSMITH_API_KEY": "none",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all programs; return 1 if one fails."""
    parser = argparse.ArgumentParser(description="Run the programs of docs/migrating.md.")
    parser.add_argument("--telemetry", action="store_true", help="print what each records, with a slow hub")
    options = parser.parse_args(arguments)
    failures = 0
    for match in PROGRAM.finditer(PAGE.read_text()):
        packages, code = shlex.split(match["packages"]), match[1]
        print(f"\n{' '.join(packages)}", flush=True)
        python = sys.executable if packages[0].startswith("pellucid") else environment(packages)
        own = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
        environ = {**os.environ, "PYTHONPATH": own}
        if options.telemetry:
            code = f"import bench.migrating_telemetry\n{code.replace(SERVER, SLOW)}"
            environ |= {**LANGSMITH, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "tests"), own]))}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([python, "-c", code], cwd=folder, env=environ, timeout=120, check=False)
        failures += done.returncode != 0
    print(f"\n{failures} failed")
    return min(failures, 1)


def environment(packages: Sequence[str]) -> str:
    """Return the Python of an environment with packages, which is made if it does not exist."""
    name = hashlib.sha256(" ".join([*packages, *OTHERS, sys.version]).encode()).hexdigest()[:16]
    python = CACHE / name / "bin" / "python"
    if not (CACHE / name / "complete").exists():
        venv.create(CACHE / name, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, *OTHERS]
        subprocess.run(command, check=True)
        (CACHE / name / "complete").touch()
    return str(python)


if __name__ == "__main__":
    sys.exit(main())
