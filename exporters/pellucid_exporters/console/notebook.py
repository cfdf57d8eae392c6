"""Runs in the output of a notebook's cell: a tree that is updated in place, with input and output folded."""

from __future__ import annotations

import html
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

from opentelemetry.sdk.trace import ReadableSpan

from pellucid.text import clean
from pellucid_exporters.console.terminal import PLAIN_WIDTH
from pellucid_exporters.console.tree import Key, Line, Tree, fitted, plain, recorded, rows

REDRAW: Final = 0.5
"""Seconds between two updates of a run in progress."""
MOST_LINES: Final = 200
"""Maximum number of lines of a run in progress: the latest ones."""
LONGEST_CONTENT: Final = 10_000
MOST_CONTENT: Final = 1_000_000
"""Maximum number of characters of input and output in one tree, as a notebook keeps it in its file."""

STYLES: Final = {
    "tree": "opacity:.5",
    "name": "font-weight:bold",
    "number": "color:var(--jp-info-color1,#0288d1)",
    "fact": "",
    "bad": "font-weight:bold;color:var(--jp-error-color1,#d32f2f)",
    "": "opacity:.6",
}
_TREE: Final = "font-family:monospace;font-size:85%;line-height:1.4;white-space:pre;overflow-x:auto"
_CONTENT: Final = "margin:0 0 .5em 3em;max-height:20em;overflow:auto;white-space:pre-wrap;opacity:.8"
_INDENT: Final = 3
"""Columns of one level of the tree."""
_NO_MATH: Final = "tex2jax_ignore mathjax_ignore"
"""Classes of text in which `$` does not begin a formula."""


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook. IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class Notebook:
    """Output of cells: each run is shown in the cell that started it."""

    def __init__(self, under_way: Callable[[Callable[[Tree], Any]], list[Any]], *, content: bool, live: bool) -> None:
        self._under_way = under_way
        self._content = content
        self._is_live = live
        self.lock = threading.RLock()
        self._displays: dict[Key, str] = {}
        self._redrawing: threading.Event | None = None

    def show(self, ended: Tree | None, *, busy: bool) -> None:
        """Show a run that has started, or the whole tree of one that has ended."""
        if ended is not None:
            bundle = _bundle(ended, _document(ended, content=self._content))
            with self.lock:
                _publish(bundle, self._displays.pop(ended.key, None))
        elif self._is_live:
            self._under_way(self._begin)
        if not busy:
            self.stop()
        elif self._is_live and self._redrawing is None:
            self._redrawing = over = threading.Event()
            threading.Thread(target=self._redraw, args=(over,), name="pellucid-notebook", daemon=True).start()

    def stop(self) -> None:
        """End the updates."""
        if self._redrawing is not None:
            self._redrawing.set()
            self._redrawing = None

    def renew(self) -> None:
        """Forget the parent's runs in a forked child."""
        self.lock = threading.RLock()
        self._displays = {}
        self._redrawing = None

    def _begin(self, tree: Tree) -> None:
        with self.lock:
            if tree.key not in self._displays:
                self._displays[tree.key] = _publish(_bundle(tree, _document(tree, content=False)))

    def _redraw(self, over: threading.Event) -> None:
        while not over.wait(REDRAW):
            self._under_way(self._update)

    def _update(self, tree: Tree) -> None:
        bundle = _bundle(tree, _document(tree, content=False, most=MOST_LINES))
        with self.lock:
            if tree.key in self._displays:  # otherwise the run has ended in the meantime
                _publish(bundle, self._displays[tree.key])


def _publish(bundle: dict[str, str], display_id: str | None = None) -> str:
    """Show a bundle in the current cell, or in place of what was shown under an id; return the id."""
    publisher = sys.modules["IPython"].get_ipython().display_pub
    shown_as = display_id or uuid4().hex
    publisher.publish(bundle, transient={"display_id": shown_as}, update=display_id is not None)
    return shown_as


def _bundle(tree: Tree, document: str) -> dict[str, str]:
    """Return a tree in both forms; a front end shows the one that it can."""
    return {"text/plain": plain(fitted(tree.lines(), PLAIN_WIDTH)), "text/html": document}


def _document(tree: Tree, *, content: bool, most: int | None = None) -> str:
    """Return a tree as HTML whose branches fold; all is escaped. `most`: only so many of its last lines."""
    room = MOST_CONTENT if content else 0
    items: list[str] = []
    placed = list(rows(tree.root))
    shown = placed[-most:] if most is not None else placed
    depths = [len(line[0].text) // _INDENT for line, _, _ in shown]
    open_depths: list[int] = []
    for (line, _, span), depth, following in zip(shown, depths, [*depths[1:], 0], strict=True):
        while open_depths and open_depths[-1] >= depth:
            open_depths.pop()
            items.append("</details>")
        texts = list(_contents(span, room)) if content else []
        room -= sum(map(len, texts))
        if following > depth and most is None:
            open_depths.append(depth)
            is_open = not depth or len(placed) <= MOST_LINES
            items.append(f"<details{' open' if is_open else ''}>{_summary(line)}{_folded(texts, 'input and output')}")
        else:
            items.append(_folded(texts, line) if texts else f"<div>{_words(line)}</div>")
    items += ["</details>"] * len(open_depths)
    items += [f'<div style="{STYLES["tree"]}">{html.escape(omission)}</div>' for omission in tree.omissions]
    return f'<div class="{_NO_MATH}" style="{_TREE}">{"".join(items)}</div>'


def _words(line: Line) -> str:
    return "".join(f'<span style="{STYLES[word.style]}">{html.escape(word.text)}</span>' for word in line)


def _summary(line: Line | str) -> str:
    shown = f'<span style="{STYLES[""]};margin-left:3em">{line}</span>' if isinstance(line, str) else _words(line)
    return f'<summary style="display:block;cursor:pointer">{shown} ▸</summary>'


def _folded(texts: list[str], line: Line | str) -> str:
    """Return texts folded behind a line; nothing if there are none."""
    shown = "".join(f'<div style="{_CONTENT}">{html.escape(text)}</div>' for text in texts)
    return f"<details>{_summary(line)}{shown}</details>" if texts else ""


def _contents(span: ReadableSpan, room: int) -> Iterator[str]:
    """Yield input and output of a span, of up to `room` characters together."""
    for word, text in recorded(span):
        kept = min(LONGEST_CONTENT, max(0, room))
        shown = "\n".join(clean(line) for line in _indented(text[:kept]).split("\n"))
        yield f"{word}: {shown}" if len(text) <= kept else f"{word}: {shown}… ({len(text):,} characters)"
        room -= kept


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):  # not JSON, or cut
        return text
