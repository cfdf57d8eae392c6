"""The documentation does what it says: every block of code in it is executed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
import yaml

from support import anthropic_wire, gemini_wire, openai_wire
from support.nats_server import nats_server
from support.pages import BLOCK, PAGES, ROOT, blocks_of
from support.processes import PATIENCE, python, with_programs
from support.vendor_server import answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.vendor_server import Answer, Received

NATS = "nats://localhost:4222"

pytestmark = pytest.mark.docs


def blocks(language: str) -> list[object]:
    """Return the blocks of one language in all pages, as parameters."""
    return [pytest.param(code, id=f"{page.name}:{line}") for page, line, code in blocks_of(language)]


def reply(asked: Received) -> Answer:
    """Answer as the vendor whose path is asked."""
    if asked.path.endswith("/messages"):
        return answer_json(anthropic_wire.message(anthropic_wire.text("Rain.")))
    if asked.path.endswith("/chat/completions"):
        return answer_json(openai_wire.completion({"content": "Rain."}))
    return gemini_wire.whole(gemini_wire.text("Rain."))


@pytest.fixture(scope="module")
def vendors() -> Iterator[dict[str, str]]:
    """Return the environment of a reader who has keys; the vendors are a local server."""
    with vendor_server() as server:
        server.always(reply)
        keys = {f"{vendor}_API_KEY": "key-of-a-reader" for vendor in ("ANTHROPIC", "GEMINI", "OPENAI", "TAVILY")}
        addresses = {
            "ANTHROPIC_BASE_URL": server.url,
            "GOOGLE_GEMINI_BASE_URL": server.url,
            "OPENAI_BASE_URL": f"{server.url}/v1",
        }
        yield {**os.environ, **keys, **addresses}


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path, vendors: dict[str, str]) -> None:
    """Each block of Python runs by itself, as a reader would paste it; it takes ports that are free here."""
    code = code.replace("prometheus=9464", "prometheus=0")
    with ExitStack() as stack:
        if NATS in code:
            code = code.replace(NATS, stack.enter_context(nats_server()).url)
        done = subprocess.run(
            python("-c", code),
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=vendors,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", blocks("console"))
def test_console_blocks_name_what_there_is(code: str) -> None:
    """Each command that is shown exists: make knows its targets, and the command line its options."""
    commands = [
        re.split("  #| > ", line.removeprefix("$ "))[0].strip() for line in code.splitlines() if line.startswith("$ ")
    ]
    assert commands
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            shown = ["make", "--dry-run", *words[1:]]
        elif words[0] == "pellucid":
            shown = python("-m", "pellucid", *words[1:], "--help")
        else:
            known = [
                "pip",
                "curl",
                "python",
                "prometheus",
                "amtool",
                "helm",
                "kubectl",
                "opentelemetry-instrument",
                ".",
                "export",
                "echo",
                "mkdir",
            ]
            is_assignment = re.match(r"[A-Z]+=", command) is not None
            assert is_assignment or words[0] in known, f"nothing here knows the command {command!r}"
            continue
        done = subprocess.run(shown, check=False, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr


def test_an_incident_becomes_a_test(tmp_path: Path) -> None:
    """The commands of `docs/replay.md` lead from a failed run on the page to a test that passes."""
    page = (ROOT / "docs" / "replay.md").read_text()
    source, commands = (BLOCK.search(page, page.index(start)) for start in ("```python", "```console"))
    assert source is not None
    assert commands is not None
    (tmp_path / "tests").mkdir()
    (tmp_path / "shop.py").write_text(source["code"])
    environment = {**os.environ, "PATH": with_programs(tmp_path / "bin")}

    def run(line: str) -> str:
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    run("python shop.py")
    [stored] = json.loads(run("pellucid runs --outcome failed --json"))["runs"]
    view, *lines = [line.removeprefix("$ ") for line in commands["code"].splitlines()]
    assert stored["run_id"][:12] in _shown(view, tmp_path, environment)
    said = [run(line.replace("5f0c81d2a9e4", stored["run_id"][:12])) for line in lines]
    assert "billing is down" in said[0]
    assert said[1].startswith("same ")
    assert "1 passed" in said[-1]


def test_from_nothing_to_a_gate(tmp_path: Path) -> None:
    """The commands of `docs/experiments.md` lead from runs to a set, and to a gate of CI that passes and fails."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    starts = ("```python", "```console", "```yaml", "```text")
    source, commands, workflow, shown = (BLOCK.search(page, page.index(start))["code"] for start in starts)  # type: ignore[index]
    (tmp_path / "shop.py").write_text(source)
    environment = {**os.environ, "PATH": with_programs(tmp_path / "bin")}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    lines = [line.removeprefix("$ ") for line in commands.splitlines()]
    done = [run(line) for line in lines]
    assert [each.returncode for each in done] == [0] * len(lines), [each.stderr for each in done]
    said, expected = done[-1].stdout.splitlines(), shown.splitlines()
    assert [line for line in said if line.isalpha()] == [line for line in expected if line.isalpha()]
    assert said[-2:] == expected[-2:]
    steps = yaml.safe_load(workflow)["jobs"]["experiment"]["steps"]
    gate = next(step["run"] for step in steps if step.get("run", "").startswith("pellucid"))
    passed = run(gate)
    assert passed.returncode == 0, passed.stderr
    assert (tmp_path / "report.md").read_text().startswith("# Experiment prices-")
    assert run(gate.replace("shop:agent", "shop:worse")).returncode == 1


def _shown(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Return the list of runs that `pellucid view` serves."""
    server = subprocess.Popen(
        [*shlex.split(command), "--port", "0"],
        executable=Path(environment["PATH"].split(os.pathsep)[0], "pellucid"),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server, server.stdout:
        try:
            url = next(found[0] for line in server.stdout if (found := re.search(r"http://[^\s/]+", line)))
            with urlopen(f"{url}/runs", timeout=PATIENCE) as answer:
                return str(answer.read().decode())
        finally:
            server.send_signal(signal.SIGINT)


def test_links_between_pages_lead_somewhere() -> None:
    """Each relative link leads to a file of the repository."""
    broken = [
        f"{page.name}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", BLOCK.sub("", page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    """Each example runs to its end and prints something."""
    done = subprocess.run(
        python(str(script)),
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_is_short() -> None:
    """The README stays within 200 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_all_extras_are_listed() -> None:
    """The table of `docs/installation.md` has the extras of `pyproject.toml`, and the packages that each brings."""
    page, _, _ = (ROOT / "docs" / "installation.md").read_text().partition("\n## Size")
    listed = {
        name: set(brings.split(", ")) for name, brings in re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.MULTILINE)
    }
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {name: set().union(*map(_packages, needed)) for name, needed in declared.items()}
    everything = brought.pop("all")
    assert listed.pop("all") == {"all of the above"}
    assert listed == brought
    assert everything | {"prices"} == set(brought)


def _packages(requirement: str) -> set[str]:
    """Return the name of a required package, or those of required extras."""
    found = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement)
    assert found is not None
    name, extras = found.groups()
    return set(extras.split(",")) if name == "pellucid" else {name}
