"""The documentation does what it says: every block of code in it is executed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.docs


def blocks(language: str) -> list[object]:
    """Return the blocks of one language in all pages, as parameters."""
    return [
        pytest.param(match["code"], id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
        if match["language"] == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    """Each block of Python runs by itself, as a reader would paste it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", blocks("console"))
def test_console_blocks_name_what_there_is(code: str) -> None:
    """Each command that is shown exists: make knows its targets, and the command line its options."""
    commands = [line.removeprefix("$ ").split("  #")[0].strip() for line in code.splitlines() if line.startswith("$ ")]
    assert commands
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            shown = ["make", "--dry-run", *words[1:]]
        elif words[0] == "pellucid":
            shown = [sys.executable, "-m", "pellucid.cli", *words[1:], "--help"]
        else:
            assert words[0] in ("pip", "curl", "python", "prometheus"), f"nothing here knows the command {command!r}"
            continue
        done = subprocess.run(shown, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    """Each relative link leads to a file of the repository."""
    broken = [
        f"{page.name}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    """Each example runs to its end and prints something."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_is_short() -> None:
    """The README stays within 200 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
