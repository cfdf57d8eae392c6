"""Run the examples of other frameworks instrumented, each with its current packages in an environment of its own.

`make test-frameworks` checks what `tests/frameworks/program.py` looks at in each, prints what was installed, and lets
each page for a slow hub and a hanging one on a real Prometheus. `ARGS="strands-agents fastmcp"` selects frameworks;
`ARGS="--spans"` prints the spans without and with Pellucid, `ARGS="--short"` leaves the alerts out. The environments
are in `$XDG_CACHE_HOME/pellucid/frameworks`; `--made` only says whether any is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from support.caches import cache
from support.shipped_rules import page_for_a_slow_and_a_hanging_hub

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = cache("frameworks")
PROGRAM: Final = ROOT / "tests" / "frameworks" / "program.py"
INSTRUMENTED: Final = "from mcp import ClientSession; ClientSession.send_request.__wrapped__"
TIME: Final = "mcp-server-time"
PACKAGE: Final = "mcp_server_time"
ADAPTERS: Final = ROOT / "tests" / "adapters"
WITHIN: Final = 300
WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    Attributes:
        example: File in `examples/frameworks`.
        packages: What is installed; the first one is the framework.
        hub: Id of the hub over stdio: its name in the framework, else the package.
        adapter: Program in `tests/adapters` that tries our adapter for it.
    """

    example: str
    packages: tuple[str, ...]
    hub: str = "clock"
    adapter: str | None = None

    @property
    def name(self) -> str:
        """Name of the package."""
        return _bare(self.packages[0])

    @property
    def folder(self) -> Path:
        """Folder of its environment, with the versions that were current when it was made."""
        key = hashlib.sha256(" ".join([*self.packages, TIME, *_dependencies(), sys.version]).encode()).hexdigest()[:16]
        return CACHE / f"{self.name}-{key}"

    @property
    def is_made(self) -> bool:
        """True if its environment has been made."""
        return (self.folder / "complete").exists()

    @property
    def file(self) -> Path:
        """The example."""
        return ROOT / "examples" / "frameworks" / f"{self.example}.py"


FRAMEWORKS: Final = (
    Framework("pydantic_ai_agent", ("pydantic-ai-slim[mcp]",), adapter="pydantic_ai_both_ways"),
    Framework("openai_agents", ("openai-agents",), adapter="openai_agents_ours"),
    Framework("langchain_agent", ("langchain-mcp-adapters", "langchain"), adapter="langchain_both_ways"),
    Framework("fastmcp_client", ("fastmcp",), hub=PACKAGE, adapter="fastmcp_theirs"),
    Framework("google_adk", ("google-adk", "mcp"), hub=PACKAGE, adapter="google_adk_ours"),
    Framework("strands_agent", ("strands-agents",), hub=PACKAGE, adapter="strands_ours"),
    Framework("agent_framework_agent", ("agent-framework-core", "mcp", "tenacity")),
    Framework("smolagents_agent", ("smolagents[mcp]", "mcp<2"), hub=PACKAGE),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(one.name for one in FRAMEWORKS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="leave out the alerts, which take a minute for all")
    parser.add_argument("--made", action="store_true", help="only say which environments are missing")
    parser.add_argument("--spans", action="store_true", help="print the spans without and with Pellucid")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {one.name for one in FRAMEWORKS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [one for one in FRAMEWORKS if not options.names or one.name in options.names]
    if options.made:
        return _missing(chosen)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
        subprocess.run(command, check=True)
        [wheel] = Path(folder).glob("*.whl")
        failures = sum(pool.map(lambda one: _try(one, wheel, options), chosen))
    print(f"\n{failures} failed")
    return min(failures, 1)


def environment(framework: Framework, wheel: Path) -> str:
    """Return the Python of an environment with a framework, which is made if it does not exist, and this package."""
    folder = framework.folder
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not framework.is_made:
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([*pip, *framework.packages, TIME], check=True)
        # What the framework brought stays, lest an older version of it be chosen instead.
        versions = subprocess.run([*pip[:3], "freeze"], check=True, capture_output=True, text=True).stdout
        (folder / "versions.txt").write_text(versions)
        subprocess.run([*pip, "--constraint", str(folder / "versions.txt"), *_dependencies()], check=True)
        (folder / "complete").touch()
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)
    return str(folder / "bin" / "python")


def _dependencies() -> list[str]:
    """Return what this package needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["instrumentation"]]


def _missing(chosen: Sequence[Framework]) -> int:
    """Say which environments are missing; return 1 if any is."""
    names = ", ".join(one.name for one in chosen if not one.is_made)
    if names:
        print(f"Other frameworks are not tried here: `make test-frameworks` makes the environments of {names}.")
    return 1 if names else 0


def _bare(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ]", requirement)[0]


def _try(framework: Framework, wheel: Path, options: argparse.Namespace) -> bool:
    """Check one framework, print what was found, and return whether it failed."""
    try:
        python = environment(framework, wheel)
        table = _run(python, str(framework.file))
        assert re.search(rf"^{framework.hub} .* ok$", table, re.MULTILINE), table
        _run(str(Path(python).with_name("opentelemetry-instrument")), python, "-c", INSTRUMENTED)
        if framework.adapter is not None:
            _run(python, str(ADAPTERS / f"{framework.adapter}.py"))
        packages = [framework.name, "mcp", "opentelemetry-sdk"]
        found = json.loads(_run(python, str(PROGRAM), str(framework.file), *packages).splitlines()[-1])
        if not options.short:
            with tempfile.TemporaryDirectory() as folder:
                page_for_a_slow_and_a_hanging_hub([python], framework.file, Path(folder), **_environ())
    except (subprocess.SubprocessError, AssertionError, pytest.fail.Exception) as error:
        output = getattr(error, "stderr", None) or ""
        print(f"\n{framework.name}: FAILED: {error}\n{output[-4000:]}", flush=True)
        return True
    print(f"\n{_report(framework, found, options)}", flush=True)
    return False


def _report(framework: Framework, found: dict[str, Any], options: argparse.Namespace) -> str:
    after, before = found["after"], found["before"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        versions,
        f"  discover_tools: {after['discover_tools']}, {after['in the trace of the run']} in the trace of the run",
        f"  connects: {after['connects']}; the call is in the span {after['span of the call']!r}",
        f"  our adapter: {'works' if framework.adapter is not None else 'none'}",
        f"  a hanging hub was seen after {found['age']} s"
        + ("" if options.short else "; ToolHubSlow and ToolHubHanging have fired"),
    ]
    if options.spans:
        lines += [f"  without: {', '.join(before['spans'])}", f"  with: {', '.join(after['spans'])}"]
    return "\n".join(lines)


def _run(*command: str) -> str:
    return subprocess.run(
        command, env=_environ(), timeout=WITHIN, check=True, capture_output=True, text=True
    ).stdout  # fmt: skip


def _environ() -> dict[str, str]:
    """Return the environment without the modules of this process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    sys.exit(main())
