"""Pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
API: Final = ROOT / "docs" / "api"
"""Pages that are written from docstrings."""
PAGES: Final = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent != API)]
END: Final = "<!-- end -->"
MARKED: Final = re.compile(rf"<!-- (?P<directive>::: (?P<name>[\w.]+).*?) -->\n.*?{END}", re.DOTALL)
"""Pattern of a text that is written from the docstring of one name."""
BLOCK: Final = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code; `line` is that of its fence, from 1."""

    page: Path
    line: int
    code: str


def blocks_of(language: str) -> Iterator[Block]:
    """Yield the blocks of one language in all pages."""
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match["language"] == language:
                yield Block(page, text[: match.start()].count("\n") + 1, match["code"])


def directives(page: str) -> str:
    """Return a page with mkdocstrings' directives in place of what is written from docstrings."""
    return MARKED.sub(lambda found: found["directive"], page)
