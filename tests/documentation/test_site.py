"""The site of the documentation: it builds, and has every page and every public name."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from documentation.links import faults_in
from documentation.site import CONFIGURATION, SiteError, build, stage
from support.pages import ROOT, blocks_of

PUBLIC = (
    "pellucid",
    "pellucid.durable",
    "pellucid.durable_runs",
    "pellucid.external",
    "pellucid.mcp",
    "pellucid.models",
    "pellucid.nats",
    "pellucid.replay",
    "pellucid.server",
    "pellucid.testing",
    "pellucid_exporters",
    "pellucid_exporters.testing",
)
"""Modules of the public API with a list of their names; errors and events are whole modules."""

needs_zensical = pytest.mark.skipif(find_spec("zensical") is None, reason="zensical is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site") / "site"
    build(folder)
    return folder


@needs_zensical
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """The site builds without a fault, and describes each name that a public module or a page offers."""
    from mkdocstrings import Inventory

    with (site / "objects.inv").open("rb") as file:
        described = Inventory.parse_sphinx(file)
    assert sorted(_offered() - set(described)) == []


def _offered() -> set[str]:
    """Return the names in `__all__` of public modules, and what Python blocks of the pages import."""
    listed = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}
    imported = {
        f"{statement.module}.{alias.name}"
        for block in blocks_of("python")
        for statement in ast.walk(ast.parse(block.code))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("pellucid")
        for alias in statement.names
    }
    return listed - {"pellucid.__version__"} | imported - {"pellucid.semconv"}  # docs/telemetry.md has the names


@needs_zensical
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """The site works without the internet: `build` refuses a page that loads what it does not have."""
    (site / "foreign.html").write_text('<img src="https://example.com/a.png"><a href="gone.html">x</a><a href="#no">x</a>')
    assert faults_in(site) == [
        "foreign.html: loads https://example.com/a.png",
        "foreign.html: gone.html leads nowhere",
        "foreign.html: #no has no such anchor",
    ]
    (site / "foreign.html").unlink()


@needs_zensical
@pytest.mark.parametrize("fault", ["[a](gone.md)", "[a](tools.md#gone)", "![a](gone.png)", "::: pellucid.Gone"])
def test_a_fault_fails_the_build(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, an anchor, a picture or a name that leads nowhere fails the build, and is named."""

    def stage_fault(pages: Path) -> None:
        pages.mkdir()
        (pages / "index.md").write_text(f"# Page\n\n{fault}\n")
        (pages / "tools.md").write_text("# Tools\n")

    monkeypatch.setattr("documentation.site.stage", stage_fault)
    with pytest.raises(SiteError, match="(?i)gone"):
        build(tmp_path / "site")


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    """The navigation has each page of `docs/` once, and nothing else; the page of examples has each example."""
    listed = list(_pages(tomllib.loads((ROOT / CONFIGURATION).read_text())["project"]["nav"]))
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
    stage(tmp_path / "docs")
    examples = (tmp_path / "docs" / "examples.md").read_text()
    staged = (tmp_path / "docs" / "examples").glob("*.md")
    assert [page.name for page in staged if f"](examples/{page.name})" not in examples] == []


def _pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(inner)
