"""Runbooks as HTML."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pellucid_exporters.alerting.runbooks import filled, runbook_names, section

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_TEXTS: Final = frozenset({"text", "code_inline", "fence", "code_block"})
_STYLE: Final = """
:root { color-scheme: light dark; --line: light-dark(#d7d9dd, #3a3e46); --quiet: light-dark(#5b616b, #a2a8b3); }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
table { display: block; overflow-x: auto; }
code { font: 0.9em ui-monospace, monospace; overflow-wrap: anywhere; }
pre { padding: 0.75rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--line); padding: 0.3rem 0.6rem; text-align: left; }
nav, dl { color: var(--quiet); font-size: 0.9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""

_UNFORMATTED: Final = "pip install 'pellucid[view]' formats this text."

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
)
"""Policy for `page`, which needs nothing but its own style."""


def body(name: str, labels: Mapping[str, str], address_of: Callable[[str], str] | None = None) -> str:
    """Return a runbook as HTML, without a page around it; labels cannot add markup.

    Without the extra `view` it is the text as it is written.

    Args:
        name: Name of the alert.
        labels: Labels of the alert.
        address_of: Returns the address of a query; queries with the alert's labels then are links.

    Raises:
        ConfigError: there is no such runbook.
    """
    text = section(name)
    if (renderer := _markdown()) is None:
        return f"<pre>{html.escape(filled(text, labels))}</pre>\n<p>{html.escape(_UNFORMATTED)}</p>\n"
    tokens = renderer.parse(text)
    for token in tokens:
        if token.children:
            token.children = _linked(token.children)
        if token.children and address_of is not None:
            token.children = list(_queries(token.children, labels, address_of))
        for each in (token, *(token.children or ())):
            if each.type in _TEXTS:
                each.content = filled(each.content, labels)
    return str(renderer.renderer.render(tokens, renderer.options, {}))


def page(
    name: str,
    labels: Mapping[str, str],
    links: Mapping[str, str] = MappingProxyType({}),
    address_of: Callable[[str], str] | None = None,
) -> str:
    """Return a page with a runbook, links by their text, and the labels of the alert.

    Raises:
        ConfigError: there is no such runbook.
    """
    known = {label: value for label, value in labels.items() if value}
    terms = "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd>" for label, value in known.items())
    listed = f"<dl>{terms}</dl>" if terms else ""
    places = {"All runbooks": "./", **links}
    shown = " · ".join(f"<a href='{html.escape(href)}'>{text}</a>" for text, href in places.items())
    return _page(name, f"<nav>{shown}</nav>\n{body(name, labels, address_of)}{listed}")


def index() -> str:
    """Return a page with links to all runbooks."""
    items = "".join(f"<li><a href='{name}'>{name}</a></li>" for name in runbook_names())
    return _page("Runbooks", f"<h1>Runbooks</h1>\n<ul>{items}</ul>")


def _page(title: str, content: str) -> str:
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)} · Pellucid</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{content}\n</main></body></html>\n"
    )


@functools.cache
def _markdown() -> MarkdownIt | None:
    try:
        from markdown_it import MarkdownIt
    except ModuleNotFoundError:
        return None
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _queries(tokens: Sequence[Token], labels: Mapping[str, str], address_of: Callable[[str], str]) -> Iterator[Token]:
    """Yield inline tokens, with links around queries whose placeholders the labels replace."""
    from markdown_it.token import Token

    for token in tokens:
        expression = filled(token.content, labels)
        if token.type != "code_inline" or '="$' not in token.content or '="$' in expression:
            yield token
            continue
        yield Token("link_open", "a", 1, attrs={"href": address_of(expression)})
        yield token
        yield Token("link_close", "a", -1)


def _linked(tokens: Sequence[Token]) -> list[Token]:
    """Return inline tokens with links to pages of runbooks; other pages of the documentation are only named."""
    kept: list[Token] = []
    pages = {f"#{name.lower()}": name for name in runbook_names()}
    named: str | None = None
    for token in tokens:
        if token.type == "link_open":
            href = str(token.attrs["href"])
            named = None if href in pages else href
            token.attrs["href"] = pages.get(href, href)
        if named is None or token.type not in {"link_open", "link_close"}:
            kept.append(token)
        elif token.type == "link_close":
            kept.append(replace(token, type="text", tag="", nesting=0, content=f" (docs/{named})"))
            named = None
    return kept
