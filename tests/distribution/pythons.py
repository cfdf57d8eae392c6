"""Run tests on each Python that Pellucid supports: `make test-pythons`.

Without arguments for pytest, it runs the fast part of the suite. Environments are kept in a folder of the user's cache.
A Python that this machine does not have is skipped, and so is the one that runs this, on which `make test` runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from distribution.environments import CONSTRAINTS, ROOT, run
from support.caches import cache

CACHE: Final = cache("pythons")
FAST: Final = ("tests/sdk", "tests/conventions", "--numprocesses=2", "--dist=worksteal", "--quiet")
PREFIX: Final = "Programming Language :: Python :: 3."


def main(arguments: Sequence[str]) -> int:
    """Run the tests, with arguments for pytest; return 1 if one failed."""
    failed = []
    for version in supported():
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            print(f"Python {version}: skipped, `make test` runs on it", flush=True)
        elif (interpreter := find(version)) is None:
            print(f"Python {version}: skipped, no interpreter python{version} on this machine", flush=True)
        elif not passes(version, interpreter, arguments or FAST):
            failed.append(version)
    for version in failed:
        print(f"Python {version}: failed", flush=True)
    return min(len(failed), 1)


def supported() -> list[str]:
    """Return the versions that the package's classifiers name."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    return [f"3.{text.removeprefix(PREFIX)}" for text in classifiers if text.startswith(PREFIX)]


def find(version: str) -> str | None:
    """Return an interpreter of a version that starts: from the PATH, or one that pyenv or uv has installed."""
    return next((found for found in _candidates(version) if _is(found, version)), None)


def _candidates(version: str) -> Iterator[str]:
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    for folder, pattern in ((pyenv, f"{version}.*"), (uv, f"cpython-{version}.*")):
        yield from (str(python) for python in sorted(folder.glob(f"{pattern}/bin/python{version}")))


def _is(interpreter: str, version: str) -> bool:
    """Ask an interpreter its version, and whether it can make environments: a program of pyenv may only fail."""
    program = f"import ensurepip, ssl, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    return subprocess.run([interpreter, "-c", program], capture_output=True, check=False).returncode == 0


def passes(version: str, interpreter: str, arguments: Sequence[str]) -> bool:
    """Install into the environment of a version, and run pytest in it."""
    print(f"Python {version}: {interpreter}", flush=True)
    folder = CACHE / version
    python = folder / "bin" / "python"
    if not python.exists():
        run(interpreter, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    groups = (f"--group={ROOT / 'pyproject.toml'}:{group}" for group in ("test", "dashboards"))
    run(*pip, "install", "--quiet", *CONSTRAINTS, "--editable", f"{ROOT}[all]", *groups)
    try:
        run(python, "-m", "pytest", *arguments)
    except subprocess.CalledProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
