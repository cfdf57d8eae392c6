"""Links of a built site that Zensical does not check, such as pictures, and resources loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADING = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "srcset")}
"""Elements and attributes whose target a browser loads by itself."""


@dataclass
class _Page(HTMLParser):
    """Targets that a page refers to, and ids by which others can refer to it."""

    ids: set[str] = field(default_factory=set)
    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the ids and targets of an element."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif (tag, name) in _LOADING and value:
                self.loads.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


def faults_in(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere and each resource that is loaded from elsewhere."""

    @cache
    def read(path: Path) -> _Page:
        page = _Page()
        page.feed(path.read_text())
        return page

    def faults(path: Path) -> Iterator[str]:
        page = read(path)
        for target in (*page.loads, *page.links):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads and parts.scheme != "data":
                    yield f"loads {target}"
                continue
            file = _file(site, path, unquote(parts.path))
            if not file.is_relative_to(site) or not file.is_file():
                yield f"{target} leads nowhere"
            elif parts.fragment and file.suffix == ".html" and unquote(parts.fragment) not in read(file).ids:
                yield f"{target} has no such anchor"

    return [f"{path.relative_to(site)}: {fault}" for path in sorted(site.rglob("*.html")) for fault in faults(path)]


def _file(site: Path, page: Path, target: str) -> Path:
    """Return the file that a path leads to, seen from a page."""
    if not target:
        return page
    file = (site / target.lstrip("/") if target.startswith("/") else page.parent / target).resolve()
    return file / "index.html" if file.is_dir() else file
