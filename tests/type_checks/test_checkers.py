"""Strict type checkers accept the programs of the documentation and generated tests, and refuse wrong uses."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pellucid_commands.replay.modules import module_of
from pellucid_replay import Tape, replay_sync
from support.local_store import storing
from support.pages import ROOT, blocks_of
from support.processes import PATIENCE

HERE = Path(__file__).parent
REFUSED = HERE / "refused.py"
SOURCES = ("sdk", "exporters", "dashboards")
MARK = re.compile(r"# refused: (?P<mypy>[\w-]+), (?P<pyright>\w+)$")

SHOP = """
from pellucid import Agent
from pellucid.testing import ScriptedModel

agent = Agent("support", model=ScriptedModel("You have your money back."))
"""


class Finding(NamedTuple):
    """An error that a checker reports."""

    file: str
    line: int
    code: str
    message: str


def mypy(programs: list[Path], folder: Path) -> Iterator[Finding]:
    """Yield the errors of mypy, with the configuration of this repository: strict, and more."""
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", config, "--output=json", *map(str, programs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # there are wrong uses
    for line in done.stdout.splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            yield Finding(Path(found["file"]).name, found["line"], found["code"], found["message"])


def pyright(programs: list[Path], folder: Path) -> Iterator[Finding]:
    """Yield the errors of pyright in strict mode; basedpyright is pyright with Node.js as a package."""
    config = folder / "pyrightconfig.json"
    sources = [str(ROOT / source) for source in SOURCES]
    mode = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": sources}
    config.write_text(json.dumps({"include": [str(program) for program in programs], **mode}))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", config, "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield Finding(Path(found["file"]).name, line, found.get("rule", "syntax"), found["message"])


def programs_of_the_docs(folder: Path) -> Iterator[Path]:
    """Write the blocks of Python of all pages to files, in which they have the same line numbers as in their pages."""
    for page, line, code in blocks_of("python"):
        program = folder / f"{page.stem.replace('-', '_')}_{line}.py"
        program.write_text("\n" * line + code)
        yield program


def generated_test(folder: Path) -> Iterator[Path]:
    """Write an agent, and the test that `pellucid test` makes of a run of it."""
    module = folder / "checked_shop.py"
    module.write_text(SHOP)
    yield module
    shop = importlib.import_module(module.stem)
    with storing(folder / "store.db") as telemetry, shop.agent.override(telemetry=telemetry):
        run_id = shop.agent.run_sync("Please refund order 7.").run_id
    replayed = replay_sync(shop.agent, Tape.load(folder / "store.db", run_id))
    program = folder / "test_refund.py"
    program.write_text(module_of(replayed, Path("refund.jsonl"), "checked_shop:agent", shop.agent))
    yield program


@pytest.mark.timeout(11 * PATIENCE)  # some hundred programs
@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_type_checkers(
    checker: Callable[[list[Path], Path], Iterable[Finding]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both accept the blocks of the pages, the examples and a generated test, and refuse the lines marked so."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "checked_shop", raising=False)  # that of the other checker
    examples = (ROOT / "examples").glob("*.py")
    accepted = [HERE / "accepted.py", HERE / "application.py"]
    programs = [*programs_of_the_docs(tmp_path), *generated_test(tmp_path), *sorted(examples), *accepted, REFUSED]
    findings = list(checker(programs, tmp_path))
    lines = enumerate(REFUSED.read_text().splitlines(), start=1)
    expected = {(number, mark[checker.__name__]) for number, line in lines if (mark := MARK.search(line))}
    wrong = [finding for finding in findings if finding.file == REFUSED.name]
    assert [finding for finding in findings if finding not in wrong] == []
    assert expected - {(finding.line, finding.code) for finding in wrong} == set()
    assert [finding for finding in wrong if finding.line not in dict(expected)] == []
