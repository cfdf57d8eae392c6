"""Instrument MCP servers of other versions and packages, each in an environment of its own.

`make test-servers` runs `tests/frameworks/served.py` in each and prints what was found. The environments are kept
beside those of `make test-frameworks`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.frameworks import ROOT, Framework, environment

PROGRAM: Final = ROOT / "tests" / "frameworks" / "served.py"
WITHIN: Final = 300

SERVERS: Final = (("mcp<2",), ("mcp>=2",), ("fastmcp<4",), ("fastmcp>=4",))
"""Packages that are installed; pip takes the newest that fits."""


def main() -> int:
    """Run all; return 1 if one fails."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
        subprocess.run(command, check=True)
        [wheel] = Path(folder).glob("*.whl")
        for packages in SERVERS:
            python = environment(Framework("served", packages), wheel)
            print(f"{' '.join(packages)}: ", end="", flush=True)
            failures += subprocess.run([python, str(PROGRAM)], env={}, timeout=WITHIN, check=False).returncode != 0
    print(f"{failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
