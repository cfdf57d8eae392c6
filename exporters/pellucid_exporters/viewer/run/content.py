"""Recorded messages and values as HTML within the room that a page has for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.content import parse
from pellucid_exporters.stored.sent_messages import Recorded, SentMessage
from pellucid_exporters.stored.text import cut, lines_cut, size, visible
from pellucid_exporters.viewer.run.markdown import link, looks_like_markdown, markdown, picture
from pellucid_exporters.viewer.run.media import AUDIO, DATA_URI, IMAGES, Media, blob
from pellucid_exporters.viewer.run.room import Room
from pellucid_exporters.viewer.trees import tree

FOLDED: Final = 1_500
"""Characters of a text from which it has a box of its own that scrolls."""

_ROLES: Final = frozenset({"user", "assistant", "tool"})
_MOST_PARTS: Final = 500
_PARTS: Final = frozenset({"text", "blob", "uri", "file"})


class Contents:
    """Renders recorded content.

    Args:
        base: Address of the run's page.
        room: Room that all of it may take.
        names: Names of tools by the ids of their calls.
        has_images: Whether images of other hosts are loaded.
    """

    def __init__(
        self, base: str, room: Room, names: Mapping[str, str] | None = None, *, has_images: bool = False
    ) -> None:
        self._base, self._room, self._names, self._has_images = base, room, names or {}, has_images

    def recorded(self, recorded: Recorded) -> Markup:
        """Return the content of an attribute."""
        return self.value(recorded.value, self._raw(recorded.sequence, recorded.attribute))

    def messages(self, recorded: Recorded) -> Markup:
        """Return the messages of an attribute."""
        raw = self._raw(recorded.sequence, recorded.attribute)
        if not isinstance(recorded.value, list):
            return self.value(recorded.value, raw)
        shown = Markup().join(self.message(item, raw) for item in recorded.value[:_MOST_PARTS])
        return Markup('<div class="messages">{}</div>').format(shown)

    def instructions(self, recorded: Recorded) -> Markup:
        """Return instructions: the parts of a list, or a value."""
        if not isinstance(recorded.value, list):
            return self.recorded(recorded)
        raw = self._raw(recorded.sequence, recorded.attribute)
        return Markup().join(self.part(part, raw) for part in recorded.value[:_MOST_PARTS])

    def sent(self, item: SentMessage, note: str = "") -> Markup:
        """Return a message of a request, or how many were not recorded."""
        if item.message is None:
            missing = item.missing or 1
            number = f"{missing} message{'s' if missing > 1 else ''}"
            rest = "not recorded: over the bounds of the capture policy, or no longer in the store"
            return self._room.add(Markup('<p class="cut">{} {}</p>').format(number, rest))
        return self.message(item.message, self._raw(item.sequence, item.attribute), note)

    def shared(self, items: Sequence[SentMessage]) -> list[Markup]:
        """Return messages that share the room; what a later one leaves is for those before it."""
        shown: list[Markup] = []
        for number in range(len(items), 0, -1):
            self._room.divide(number)
            shown.append(self.sent(items[number - 1]))
        return shown[::-1]

    def message(self, item: Any, raw: str, note: str = "") -> Markup:
        """Return a message with its parts."""
        if not isinstance(item, Mapping):
            return self.value(item, raw)
        role, parts, finish = str(item.get("role", "?")), item.get("parts"), item.get("finish_reason")
        kind = role if role in _ROLES else "system"
        labels = _span("label", str(finish)[:40]) if finish is not None else Markup()
        labels += _span("note", note) if note else Markup()
        head = Markup('<div class="message {}"><div class="role">{}{}</div><div class="parts">').format(
            kind, escape(visible(cut(role, 40))), labels
        )
        self._room.add(head)
        shown = self._parts(parts, raw) if isinstance(parts, list) else self.value(item, raw)
        return head + shown + Markup("</div></div>")

    def _parts(self, parts: Sequence[Any], raw: str) -> Markup:
        """Return the parts of a message for which there is room."""
        shown = Markup()
        for number, part in enumerate(parts):
            if self._room.is_spent or number == _MOST_PARTS:
                left_out = f"… {len(parts) - number:,} more parts: "
                return shown + self._room.add(
                    Markup('<p class="cut">{}<a href="{}">as recorded</a></p>').format(left_out, raw)
                )
            shown += self.part(part, raw)
        return shown

    def part(self, part: Any, raw: str) -> Markup:
        """Return a part of a message."""
        if not isinstance(part, Mapping):
            return self.value(part, raw)
        kind, content = part.get("type"), part.get("content")
        if kind in {"text", "reasoning"} and isinstance(content, str):
            text = self.text(content, raw, "prose")
            label = _span("label", "reasoning")
            return text if kind == "text" else Markup('<div class="reasoning">{}{}</div>').format(label, text)
        media = blob(part)
        if media is not None:
            return self._media(media, raw)
        if kind == "uri" and isinstance(part.get("uri"), str):
            data = DATA_URI.fullmatch(part["uri"])
            if data is not None:
                return self._media(Media(data["type"].lower(), data["content"]), raw)
            return self._uri(part, part["uri"])
        return self._call(part, str(kind), raw)

    def value(self, item: Any, raw: str = "", kind: str = "code") -> Markup:
        """Return a value: JSON as a tree, content parts as they are, text as text."""
        if isinstance(item, str):
            inner = parse(item)
            if not isinstance(inner, dict | list):
                return self.text(item, raw, kind)
            item = inner
        if isinstance(item, list) and item and all(isinstance(each, dict) and _is_part(each) for each in item):
            return Markup().join(self.part(each, raw) for each in item[:_MOST_PARTS])
        return self._room.fit(_shown(item), lambda: tree(item, longest=self._room.longest))

    def changed(self, words: Markup) -> Markup:
        """Return words of which some are marked, if there is room for them."""
        return self._room.fit(words.striptags(), lambda: words)

    def text(self, text: str, raw: str = "", kind: str = "code") -> Markup:
        """Return a text: Markdown that looks like it, and the beginning of what is long."""
        return self._room.fit(text, lambda: self._text(text, raw, kind))

    def _text(self, text: str, raw: str, kind: str) -> Markup:
        longest = self._room.longest
        is_long = len(text) > FOLDED
        fold = Markup(' class="fold" tabindex="0" role="group" aria-label="long text"') if is_long else ""
        is_plain = kind not in {"prose", "code"}
        if not is_plain and len(text) <= longest and looks_like_markdown(text) and (kind == "prose" or "\n" in text):
            media = f"{raw.replace('/raw/', '/media/')}/" if raw else ""
            shown = markdown(text, media, has_images=self._has_images)
            html = Markup("<div{}>{}</div>").format(fold, shown) if fold else shown
        else:
            html = Markup('<pre class="{}"{}>{}</pre>').format(
                "prose" if kind == "plain" else kind,
                Markup(' tabindex="0"') if is_long else "",
                escape(visible(cut(text, longest))),
            )
        if len(text) > longest:
            rest = f"Cut at {size(longest)} of {size(len(text))}{lines_cut(text, longest)}."
            whole = Markup(' <a href="{}">The whole text</a>').format(raw) if raw else ""
            html += Markup('<p class="cut">{}{}</p>').format(rest, whole)
        return html

    def _call(self, part: Mapping[str, Any], kind: str, raw: str) -> Markup:
        """Return a call of a tool, its result, or a part of another type."""
        head, value = _span("label", cut(kind, 60)), part.get("response")
        if kind == "tool_call":
            head = Markup("{} <b>{}</b> {}").format(_span("label", "calls"), _cut(part.get("name", "?")), _id(part))
            value = part.get("arguments")
        elif kind == "tool_call_response":
            name = self._names.get(str(part.get("id", "")))
            named = Markup("<b>{}</b> ").format(_cut(name)) if name else ""
            head = Markup("{} {}{}").format(_span("label", "result of"), named, _id(part))
        else:
            value = part
        start = self._room.add(Markup('<div class="call">{}').format(head))
        return start + self.value(value, raw) + Markup("</div>")

    def _media(self, media: Media, raw: str) -> Markup:
        """Return an image, a player of audio, or what a blob is."""
        label = _span("label", f"{media.type or 'unknown type'}, {media.size:,} bytes")
        address = f"{raw.replace('/raw/', '/media/')}/{media.digest}"
        if not raw or media.data() is None:
            label += _span("cut", "not shown: cut or redacted")
        elif media.type in IMAGES:
            label = Markup('<a href="{}">{}</a>{}').format(address, picture(address, media.type), label)
        elif media.type in AUDIO:
            label = Markup('<audio controls preload="none" src="{}"></audio>{}').format(address, label)
        return self._room.add(Markup('<div class="media">{}</div>').format(label))

    def _uri(self, part: Mapping[str, Any], uri: str) -> Markup:
        """Return what is at an address: a link, or an image if those of other hosts are allowed."""
        modality = str(part.get("modality", ""))
        shown = link(uri, escape(visible(cut(uri, 300))))
        if self._has_images and modality == "image" and uri.startswith(("http://", "https://")):
            shown = picture(uri, "image") + shown
        label = _span("label", f"{cut(modality, 40)} at")
        return self._room.add(Markup('<div class="media">{} {}</div>').format(label, shown))

    def _raw(self, sequence: int, attribute: str) -> str:
        return f"{self._base}{sequence}/raw/{attribute}"


def _is_part(item: dict[str, Any]) -> bool:
    return item.get("type") in _PARTS and bool(item.keys() & {"content", "uri", "file_id"})


def _span(kind: str, text: str) -> Markup:
    return Markup('<span class="{}">{}</span>').format(kind, escape(visible(text)))


def _id(part: Mapping[str, Any]) -> Markup:
    return Markup('<code class="label">{}</code>').format(escape(visible(cut(str(part.get("id", "")), 80))))


def _cut(name: Any) -> Markup:
    return escape(visible(cut(str(name), 200)))


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
