"""Recorded Markdown as HTML: no raw HTML, no image of another host, links that load nothing until they are clicked."""

from __future__ import annotations

import functools
import re
from collections.abc import MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from pellucid_exporters.stored.text import cut, visible
from pellucid_exporters.viewer.run.media import DATA_URI, IMAGES, Media

LONGEST: Final = 50_000
"""Characters of Markdown that are rendered; a longer text is shown as it is."""

_SCHEMES: Final = ("http", "https", "mailto")
_MARKS: Final = re.compile(
    r"^ {0,3}(#{1,6} |[-*+] |\d{1,3}[.)] |> |```|~~~|\|.*\|)"
    r"|\*\*[^\s*]|`[^`\n]+`|\]\([^)\s]|(?<![\w*])\*[^\s*][^*\n]*\*(?!\w)",
    re.MULTILINE,
)


def looks_like_markdown(text: str) -> bool:
    """Return whether a text has marks of Markdown."""
    return len(text) <= LONGEST and _MARKS.search(text) is not None


def markdown(text: str, media: str = "", *, has_images: bool = False) -> Markup:
    """Return Markdown as HTML.

    Args:
        text: The text.
        media: Address below which the images of its `data:` URIs are, by their digest; without it they are named only.
        has_images: Whether images of other hosts are loaded.
    """
    html = _renderer().render(visible(text), {"media": media, "images": has_images})
    return Markup('<div class="md">{}</div>').format(Markup(html))  # noqa: S704  (escaped by the renderer)


@functools.cache
def _renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 20})
    renderer.enable(["table", "strikethrough"])
    renderer.validateLink = _is_allowed  # type: ignore[method-assign]
    for name, rule in (("image", _image), ("link_open", _link_open), ("link_close", _link_close), ("fence", _fence)):
        renderer.add_render_rule(name, rule)
    for level in ("heading_open", "heading_close"):
        renderer.add_render_rule(level, _heading)
    return renderer


def _is_allowed(url: str) -> bool:
    return scheme_of(url) in _SCHEMES or DATA_URI.match(url) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of an address; empty if it has none, or is malformed."""
    try:
        return urlsplit(url).scheme.lower()
    except ValueError:
        return ""


def link(url: str, text: str | Markup) -> Markup:
    """Return a link that sends no referrer and opens elsewhere; what is no web address is text."""
    if scheme_of(url) not in _SCHEMES:
        return Markup("{}").format(text)
    return Markup('<a href="{}" rel="noreferrer noopener nofollow" target="_blank">{}</a>').format(url, text)


def _link_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    url = str(tokens[index].attrs.get("href", ""))
    if scheme_of(url) not in _SCHEMES:
        return "<span>"
    return str(link(url, Markup("\0"))).partition("\0")[0]


def _link_close(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    """Close a link, and name the host where the text of the link does not."""
    start = next(place for place in range(index - 1, -1, -1) if tokens[place].type == "link_open")
    url = str(tokens[start].attrs.get("href", ""))
    if scheme_of(url) not in _SCHEMES:
        return "</span>"
    host = urlsplit(url).hostname or url.partition(":")[2]
    text = "".join(token.content for token in tokens[start:index])
    return "</a>" if host in text else f'</a> <span class="host">({escape(cut(host, 80))})</span>'


def _image(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    token = tokens[index]
    url, text = str(token.attrs.get("src", "")), token.content
    found = DATA_URI.match(url)
    if found is not None:
        media = Media(found["type"].lower(), found["content"])
        if not env["media"] or media.type not in IMAGES:
            return str(Markup('<span class="label">image {}</span>').format(text))
        return str(picture(f"{env['media']}{media.digest}", text))
    if env["images"] and scheme_of(url) in {"http", "https"}:
        return str(picture(url, text))
    return str(Markup('<span class="label">image</span> {}').format(link(url, text or url)))


def _fence(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    token = tokens[index]
    language = token.info.split()[0].lower() if token.info.strip() else ""
    named = Markup(' data-language="{}"').format(cut(language, 20)) if language else ""
    return str(Markup('<pre class="code"{}>{}</pre>').format(named, token.content))


def _heading(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    """Return a heading that is none of the page's outline."""
    return "<p><b>" if tokens[index].nesting == 1 else "</b></p>"


def picture(address: str, text: str) -> Markup:
    """Return an image that loads when it is scrolled to."""
    return Markup('<img src="{}" alt="{}" loading="lazy" referrerpolicy="no-referrer">').format(address, text)
