"""The site of the documentation: it builds, and has every page and every public name."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mkdocstrings import Inventory

from documentation.diagrams import DIAGRAMS, draw
from documentation.links import faults_in
from documentation.reference import written
from documentation.site import CONFIGURATION, SiteError, build, stage
from support.pages import API, ROOT, blocks_of

PUBLIC = (
    "pellucid",
    "pellucid.approvals",
    "pellucid.configured",
    "pellucid.durable",
    "pellucid.errors",
    "pellucid.mcp",
    "pellucid.models",
    "pellucid.standalone",
    "pellucid.selection",
    "pellucid.server",
    "pellucid.testing",
    "pellucid_exporters",
    "pellucid_exporters.testing",
    "pellucid_instrumentation",
    "pellucid_replay",
    "pellucid_experiments",
)
"""Modules whose names are all public."""

STRICT = "{docstring_options: {warn_unknown_params: true}}"


def test_every_public_name_is_in_the_reference(tmp_path: Path) -> None:
    """The site builds without a fault, and describes each name that a public module or a page offers."""
    build(tmp_path / "site")
    with (tmp_path / "site" / "objects.inv").open("rb") as file:
        inventory = Inventory.parse_sphinx(file)
    described = {name for name, item in inventory.items() if item.role != "module"}
    # `pellucid.tool` is taken for the module of that name; the page has the function under its own path.
    assert sorted((_offered() - {"pellucid.tool"} | {"pellucid.tools.tool.tool"}) - described) == []


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


@pytest.mark.parametrize("page", sorted(API.glob("*.md")), ids=lambda page: page.stem)
def test_the_reference_is_that_of_the_docstrings(page: Path) -> None:
    """Each page of the reference is as `make docs` writes it."""
    text = page.read_text(encoding="utf-8")
    assert text == written(text), "run `make docs`, which writes docs/api"


def test_pages_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    """A page that loads what the site does not have is a fault, as is a link that leads nowhere."""
    elements = (
        '<img src="https://example.com/a.png"><a href="gone.html">a</a><a href="#gone">b</a><a href="#here" id="here">'
    )
    (tmp_path / "index.html").write_text(elements)
    assert faults_in(tmp_path) == [
        "index.html: loads https://example.com/a.png",
        "index.html: gone.html leads nowhere",
        "index.html: #gone has no such anchor",
    ]


@pytest.mark.parametrize(
    ("page", "faults"),
    [
        ("[a](gone.md) [a](tools.md#gone)", ["page does not exist", "anchor does not exist"]),
        ("![a](gone.png)", ["index.html: gone.png leads nowhere"]),
        ("::: pellucid.Gone", ["pellucid.Gone could not be found"]),
        (f"::: pellucid.tools.tool.tool\n    options: {STRICT}", ["does not appear in the function signature"]),
    ],
)
def test_a_fault_fails_the_build(page: str, faults: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, an anchor, a picture or a name that leads nowhere fails the build, as does a wrong docstring."""

    def stage_fault(pages: Path) -> None:
        pages.mkdir()
        (pages / "index.md").write_text(f"# Page\n\n{page}\n")
        (pages / "tools.md").write_text("# Tools\n")

    monkeypatch.setattr("documentation.site.stage", stage_fault)
    with pytest.raises(SiteError) as error:
        build(tmp_path / "site")
    assert [fault for fault in faults if fault not in str(error.value)] == []


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    """The navigation has each page of `docs/` once, and nothing else; the page of examples has each example."""
    listed = list(_pages(tomllib.loads((ROOT / CONFIGURATION).read_text())["project"]["nav"]))
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
    stage(tmp_path / "docs")
    examples = (tmp_path / "docs" / "examples.md").read_text()
    staged = (tmp_path / "docs" / "examples").glob("*.md")
    assert [page.name for page in staged if f"](examples/{page.name})" not in examples] == []


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagrams_are_as_drawn(name: str) -> None:
    """The diagrams in `docs/images` are those that `make pictures` draws."""
    assert (ROOT / "docs" / "images" / name).read_text() == draw(DIAGRAMS[name])


def _pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(inner)
