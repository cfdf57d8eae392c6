"""The request of a model call beside that of the call before: messages, tools, settings, and cached tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from markupsafe import Markup, escape

from pellucid import semconv
from pellucid.events import ContextCompacted
from pellucid_exporters.stored.offers import ToolOffer
from pellucid_exporters.stored.rows import EventRow, SpanRow, count_of
from pellucid_exporters.stored.sent_messages import SentMessage, SentRequest
from pellucid_exporters.stored.text import cut, visible
from pellucid_exporters.viewer.run.words import words

SETTINGS: Final = "gen_ai.request."
"""Prefix of the attributes that are settings of a model call."""

MOST_CHANGES: Final = 20
_MOST_ALIGNED: Final = 400
"""Messages that are compared, besides those at the beginning and the end that are equal."""

_ROUNDING: Final = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """A difference to the call before. Attributes: what: Its title. shown: It, with the words that differ marked."""

    what: str
    shown: Markup


@dataclass(frozen=True, slots=True)
class Got:
    """Request of a model call.

    Attributes:
        messages: Number of messages.
        new: Messages that the call before did not get.
        same: Messages that it got, too.
        cut: Messages of the call before that this one did not get, or got in another form.
        tokens, cached: Tokens of input, and those of them that the vendor read from its cache; `None` if unknown.
        left_out: Messages of the conversation that compaction leaves out; `None` without it.
        compacted: Events of compaction before this call.
        hubs: Tools by the provider that listed them: offered, and withheld.
        changes: Differences to the call before, at most `MOST_CHANGES`.
    """

    messages: int
    new: int
    same: int
    cut: int
    tokens: int | None
    cached: int | None
    left_out: int | None
    compacted: Sequence[Mapping[str, Any]]
    hubs: Sequence[tuple[str, int, int]]
    changes: Sequence[Change]

    @property
    def share(self) -> float:
        """Percent of the input that came from the vendor's cache."""
        return min(100.0, 100 * (self.cached or 0) / self.tokens) if self.tokens else 0.0


def got(
    span: SpanRow,
    sent: SentRequest,
    before: tuple[SpanRow, SentRequest] | None,
    spans: Sequence[SpanRow],
    offers: Sequence[ToolOffer],
    events: Sequence[EventRow],
) -> Got:
    """Return what a model call got; `before` is the call before it, of the same run."""
    composed = next(
        (each for each in spans if each.phase == semconv.COMPOSE and each.iteration == span.iteration), None
    )
    messages, earlier = sent.messages, before[1].messages if before is not None else ()
    blocks = list(_blocks(earlier, messages))
    same = sum(end - start for kind, start, end, _, _ in blocks if kind == "equal")
    changes: list[Change] = []
    if before is not None:
        changes += _settings(before[0], span)
        changes += _instructions(before[1], sent)
        changes += _tools(before[1], sent)
        changes += _messages(blocks, earlier, messages)
    since = before[0].start if before is not None else 0
    return Got(
        messages=len(messages),
        new=len(messages) - same,
        same=same,
        cut=len(earlier) - same,
        tokens=count_of(span.attributes, semconv.USAGE_INPUT_TOKENS),
        cached=count_of(span.attributes, semconv.USAGE_CACHE_READ_INPUT_TOKENS),
        left_out=count_of(composed.attributes, semconv.COMPOSE_LEFT_OUT) if composed is not None else None,
        compacted=[
            event.payload
            for event in events
            if event.name == ContextCompacted.name and since < event.time <= span.start + _ROUNDING
        ],
        hubs=_hubs(offers),
        changes=changes[:MOST_CHANGES],
    )


def settings_of(span: SpanRow) -> dict[str, Any]:
    """Return the settings of a model call by their names, without the model."""
    return {
        name.removeprefix(SETTINGS): value
        for name, value in sorted(span.attributes.items())
        if name.startswith(SETTINGS) and name != semconv.REQUEST_MODEL and not isinstance(value, dict)
    }


def _hubs(offers: Sequence[ToolOffer]) -> list[tuple[str, int, int]]:
    offered = Counter(offer.provider_id or "no provider on record" for offer in offers if offer.is_offered)
    withheld = Counter(offer.provider_id or "no provider on record" for offer in offers if offer.is_offered is False)
    return [(name, offered[name], withheld[name]) for name in sorted({*offered, *withheld})]


def _text(item: SentMessage) -> str:
    """Return a message as JSON; of those that were not recorded, how many."""
    if item.message is None:
        return f"{item.missing} messages not recorded"
    return json.dumps(item.message, ensure_ascii=False, indent=1, default=str)


def _blocks(before: Sequence[SentMessage], after: Sequence[SentMessage]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield what is equal, and what differs, as `SequenceMatcher` does."""
    start = 0
    while start < min(len(before), len(after)) and before[start].is_same(after[start]):
        start += 1
    yield "equal", 0, start, 0, start
    if max(len(before), len(after)) - start > _MOST_ALIGNED:
        yield "replace", start, len(before), start, len(after)
        return
    old, new = ([_text(item) for item in some[start:]] for some in (before, after))
    for kind, *places in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        one, two, three, four = (place + start for place in places)
        yield kind, one, two, three, four


def _settings(before: SpanRow, span: SpanRow) -> Iterator[Change]:
    models = [each.attributes.get(semconv.REQUEST_MODEL) for each in (before, span)]
    pairs: list[tuple[str, Any, Any]] = [("model", models[0], models[1])]
    old, new = settings_of(before), settings_of(span)
    pairs += [(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]
    for name, one, two in pairs:
        if one != two:
            yield Change(f"setting {cut(name, 80)}", words(_shown(one), _shown(two)))


def _instructions(before: SentRequest, sent: SentRequest) -> Iterator[Change]:
    one, two = (_instructions_of(each) for each in (before, sent))
    if one != two:
        yield Change("instructions", words(one, two))


def _instructions_of(sent: SentRequest) -> str:
    value = sent.instructions.value if sent.instructions is not None else ""
    if isinstance(value, list):
        return "\n".join(str(part.get("content", "")) if isinstance(part, dict) else str(part) for part in value)
    return value if isinstance(value, str) else _shown(value)


def _tools(before: SentRequest, sent: SentRequest) -> Iterator[Change]:
    old, new = _definitions(before), _definitions(sent)
    for title, names in (("tools removed", old.keys() - new.keys()), ("tools added", new.keys() - old.keys())):
        if names:
            yield Change(title, Markup("<p>{}</p>").format(escape(visible(", ".join(sorted(names))))))
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            yield Change(f"tool {cut(name, 80)}", words(old[name], new[name]))


def _definitions(sent: SentRequest) -> dict[str, str]:
    items = sent.offered.definitions or ()
    return {str(item.get("name")): _shown(item) for item in items if isinstance(item, dict)}


def _messages(
    blocks: Sequence[tuple[str, int, int, int, int]], before: Sequence[SentMessage], after: Sequence[SentMessage]
) -> Iterator[Change]:
    """Yield messages that were cut or changed; new ones at the end are no difference."""
    for kind, start, end, new_start, new_end in blocks:
        if kind in {"equal", "insert"}:
            continue
        for place in range(start, end):
            other = new_start + place - start
            if kind == "replace" and other < new_end:
                yield Change(f"message {other + 1}", words(_text(before[place]), _text(after[other])))
            else:
                yield Change(f"message {place + 1} of the call before", words(_text(before[place]), ""))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
