"""Two runs side by side: which boundaries differ, and in what."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import SpanRow

MOST_LINES: Final = 2_000
"""Lines of each side that are compared; a longer content is cut."""

_CALL_PARTS: Final = ("tool_call", "tool_call_response")
_ORDER: Final = {semconv.DISCOVERY: 0, semconv.COMPOSE: 1, semconv.INFERENCE: 2, semconv.DISPATCH: 3}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two boundaries differ, as JSON or text of both sides.

    Attributes:
        what: `prompt`, `catalogue`, `arguments`, `answer`, `outcome`, …
        lines: Lines of the difference with their kind: `same`, `less` (only in the first run), `more`, `skip`.
    """

    what: str
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A boundary of two runs; it is absent from a run that did not get there."""

    name: str
    iteration: int | None
    first: SpanRow | None
    second: SpanRow | None
    differences: Sequence[Difference]


def compare(first: RunContent, second: RunContent) -> list[Pair]:
    """Return the boundaries of both runs in the order of the first, with what differs.

    Boundaries are paired by iteration, phase and name, and repeated ones by their order. Ids of tool calls are ignored,
    because they differ in each run.
    """
    left, right = _keyed(first.spans), _keyed(second.spans)
    keys = sorted({*left, *right}, key=lambda key: (key[0], key[1], _rank(left, right, key)))
    return [_pair(key, first, left.get(key), second, right.get(key)) for key in keys]


_Key = tuple[int, int, str, int]


def _keyed(spans: Sequence[SpanRow]) -> dict[_Key, SpanRow]:
    counts: dict[tuple[int, int, str], int] = {}
    keyed: dict[_Key, SpanRow] = {}
    for span in spans:
        if span.phase is None or span.phase not in _ORDER:
            continue
        key = (span.iteration or 0, _ORDER[span.phase], span.name)
        counts[key] = counts.get(key, 0) + 1
        keyed[*key, counts[key]] = span
    return keyed


def _rank(left: dict[_Key, SpanRow], right: dict[_Key, SpanRow], key: _Key) -> int:
    return (left.get(key) or right[key]).sequence


def _pair(key: _Key, first: RunContent, left: SpanRow | None, second: RunContent, right: SpanRow | None) -> Pair:
    differences: list[Difference] = []
    if left is not None and right is not None:
        for (what, one), (_, other) in zip(_facets(first, left), _facets(second, right), strict=True):
            if one != other:
                differences.append(Difference(what, difference(one, other)))
    return Pair(key[2], key[0] or None, left, right, differences)


def _facets(content: RunContent, span: SpanRow) -> Iterator[tuple[str, Any]]:
    """Yield what two boundaries are compared by."""
    if span.phase == semconv.INFERENCE:
        request = content.request(span)
        messages = [message.message or f"{message.missing} messages not recorded" for message in request.messages]
        yield "model", span.attributes.get(semconv.REQUEST_MODEL)
        yield "instructions", request.instructions and request.instructions.value
        yield "tools", request.offered.definitions
        yield "prompt", _or_digest(messages if request.is_recorded else None, span, semconv.INPUT_DIGEST)
        yield "answer", _recorded(content, span, semconv.OUTPUT_MESSAGES, semconv.OUTPUT_DIGEST)
    elif span.phase == semconv.DISPATCH:
        yield "arguments", _recorded(content, span, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT_DIGEST)
        yield "result", _recorded(content, span, semconv.TOOL_CALL_RESULT, semconv.OUTPUT_DIGEST)
    elif span.phase == semconv.DISCOVERY:
        yield "input", _recorded(content, span, semconv.INPUT, semconv.INPUT_DIGEST)
        yield "catalogue", _recorded(content, span, semconv.OUTPUT, semconv.OUTPUT_DIGEST)
        yield "catalogue digest", span.attributes.get(semconv.CATALOG_DIGEST)
    else:
        yield "tools offered", span.attributes.get(semconv.COMPOSE_TOOLS)
        yield "messages left out", span.attributes.get(semconv.COMPOSE_LEFT_OUT)
        yield "tools denied", span.attributes.get(semconv.COMPOSE_DENIED)
    yield "outcome", {"status": span.status, "error": span.error_type, "message": span.error}


def _recorded(content: RunContent, span: SpanRow, attribute: str, digest: str) -> Any:
    recorded = content.get(span, attribute)
    return _or_digest(None if recorded is None else recorded.value, span, digest)


def _or_digest(value: Any, span: SpanRow, digest: str) -> Any:
    """Return the content without ids of calls; its digest, if there is one, if it was not recorded."""
    if value is None:
        return {"digest": span.attributes[digest]} if digest in span.attributes else None
    return _without_ids(value)


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        is_call = value.get("type") in _CALL_PARTS
        return {key: _without_ids(item) for key, item in value.items() if not (is_call and key == "id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


def difference(one: Any, other: Any) -> list[tuple[str, str]]:
    """Return the lines in which two values differ, as JSON or text, with two lines around them, and their kinds."""
    lines = list(difflib.unified_diff(_lines(one), _lines(other), n=2, lineterm=""))[2:]  # without the file names
    kinds = {"-": "less", "+": "more", " ": "same", "@": "skip"}
    return [(kinds[line[0]], "⋯" if line[0] == "@" else line[1:]) for line in lines]


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text.split("\n")[:MOST_LINES]
