"""Run tests with the lowest and the newest supported OpenTelemetry: `make test-opentelemetry`.

Each version is installed into an environment on top of the one that runs this, which has everything else. The newest is
skipped if it is the one that `make test` runs with. Arguments are for pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions, requires, version
from pathlib import Path
from typing import Final

from distribution.environments import run
from support.caches import cache

CACHE: Final = cache("opentelemetry")
STABLE: Final = ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp")
OTHERS: Final = ("opentelemetry-instrumentation", "opentelemetry-instrumentation-celery")
"""Packages whose versions follow."""

TESTS: Final = (
    "tests/conventions",
    "tests/exporters",
    "tests/faults/test_forked_telemetry.py",
    "tests/faults/test_child_processes.py",
    "-m=not browser",
    *(f"--ignore=tests/exporters/{folder}" for folder in ("commands", "viewer", "local", "scores")),
    "--numprocesses=3",
    "--dist=worksteal",
    "--quiet",
)
"""Tests of what is emitted and exported. Commands, pages and contents of stores do not depend on the version."""

LEFT_OUT: Final[Mapping[str, Sequence[str]]] = {
    "1.44": (
        # Without the own recorder, which it does not support.
        "--ignore-glob=*/test_recorder_*",
        "--ignore=tests/exporters/test_options.py",
        "-k=not fast",
        # It refuses wrong values of its variables itself, and attributes of bytes that are not UTF-8.
        "--deselect=tests/exporters/test_pipeline.py::test_values_of_the_environment_that_cannot_work_are_warned_of",
        "--deselect=tests/exporters/test_file.py::test_lines_are_valid_json_whatever_is_in_them",
        "--deselect=tests/exporters/test_otlp_encoding.py::test_log_records_are_encoded_as_by_the_official_encoder",
        # It does not collect a gauge again that was not set since.
        "--deselect=tests/exporters/test_prometheus.py::test_a_bad_instrument_is_left_out",
    ),
}
"""Tests that a version cannot pass."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests; return 1 if one failed."""
    lowest = _lowest()
    is_well = _passes(f"{lowest}.*", [*(arguments or TESTS), *LEFT_OUT.get(lowest, ())])
    return 0 if _passes("", arguments or TESTS) and is_well else 1


def _lowest() -> str:
    """Return the lowest version that the package requires."""
    (bound,) = (found for found in requires("pellucid") or () if found.startswith("opentelemetry-sdk"))
    found = re.search(r">=([0-9.]+)", bound)
    assert found is not None
    return found[1]


def _passes(wanted: str, arguments: Sequence[str]) -> bool:
    folder = CACHE / (wanted.removesuffix(".*") or "newest")
    venv.create(folder, with_pip=False, clear=True)
    python, packages = folder / "bin" / "python", _packages(folder)
    below = sysconfig.get_path("purelib")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    names = [f"{name}=={wanted}" if wanted else name for name in STABLE]
    run(*pip, "install", "--quiet", "--no-warn-conflicts", "--upgrade", *names, *OTHERS)
    installed = {found.name: found.version for found in distributions(path=[str(packages)])}.get("opentelemetry-sdk")
    if installed is None or installed == version("opentelemetry-sdk"):
        print(f"OpenTelemetry {version('opentelemetry-sdk')}: skipped, `make test` runs with it", flush=True)
        return True
    print(f"OpenTelemetry {installed}", flush=True)
    # The directory of scripts is on the path of this process, where `PYTHONPATH` says so.
    return subprocess.run([python, "-m", "pytest", *arguments], env=os.environ, check=False).returncode == 0


def _packages(folder: Path) -> Path:
    (found,) = (folder / "lib").glob("python*/site-packages")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
