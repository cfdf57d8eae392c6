"""Recorded content as lines: messages, calls, results and other JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.documents import INPUTS, OUTPUTS, recorded_in
from pellucid_exporters.stored.rows import SpanRow
from pellucid_exporters.stored.sent_messages import SentRequest
from pellucid_exporters.stored.text import MOST, cut, lines_cut, size

_TEXTS: Final = {"text": "", "reasoning": "(reasoning) "}


def content_lines(content: RunContent, span: SpanRow) -> Iterator[str]:
    """Yield what went in and out of a boundary; of a model call the whole request."""
    if span.phase == semconv.INFERENCE and (request := content.request(span)).is_recorded:
        yield from _request_lines(request)
    else:
        yield from _recorded_lines("input", content, span, INPUTS)
    yield from _recorded_lines("output", content, span, OUTPUTS)


def _recorded_lines(title: str, content: RunContent, span: SpanRow, attributes: tuple[str, ...]) -> Iterator[str]:
    recorded = recorded_in(content, span, attributes)
    if recorded is None:
        yield f"{title}: not recorded"
    else:
        yield f"{title}:"
        yield from _indented(_value_lines(recorded.value))


def _request_lines(request: SentRequest) -> Iterator[str]:
    if request.instructions is not None:
        yield "instructions:"
        yield from _indented(_value_lines(request.instructions.value))
    if request.offered.definitions is not None:
        yield f"tools: {', '.join(str(_name(tool)) for tool in request.offered.definitions)}"
    if request.offered.cut:
        yield f"  … {request.offered.cut}"
    yield "messages:"
    for message in request.messages:
        if message.message is None:
            yield f"  … {message.missing} messages not recorded"
        else:
            mark = "+" if message.is_new else " "
            yield from (f"{mark} {line}" for line in _message_lines(message.message))


def _name(tool: Any) -> Any:
    return tool.get("name", "?") if isinstance(tool, Mapping) else "?"


def _value_lines(value: Any) -> Iterator[str]:
    if isinstance(value, list) and value and all(_is_message(item) or _is_part(item) for item in value):
        for item in value:
            yield from _message_lines(item) if _is_message(item) else _part_lines(item)
    else:
        yield from _text_lines(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("parts"), list)


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") in (*_TEXTS, "tool_call", "tool_call_response")


def _message_lines(message: Mapping[str, Any]) -> Iterator[str]:
    lines = [line for part in message.get("parts", []) for line in _part_lines(part)]
    yield f"{message.get('role', '?')}: {lines[0] if lines else ''}".rstrip()
    yield from _indented(lines[1:])


def _part_lines(part: Any) -> Iterator[str]:
    kind = str(part.get("type")) if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        yield from _text_lines(f"{_TEXTS[kind]}{part.get('content', '')}")
    elif kind == "tool_call":
        arguments = json.dumps(part.get("arguments"), ensure_ascii=False)
        yield from _text_lines(f"call {part.get('name')} {arguments}")
    elif kind == "tool_call_response":
        result = part.get("response", part.get("result"))
        shown = result if isinstance(result, str) else json.dumps(result, indent=2, ensure_ascii=False)
        yield from _text_lines(f"result {shown}")
    else:
        yield from _text_lines(json.dumps(part, ensure_ascii=False))


def _text_lines(text: str) -> Iterator[str]:
    yield from cut(text).split("\n")
    if len(text) > MOST:
        yield f"… cut after {MOST:,} characters of {size(len(text))}{lines_cut(text)}; --json has all"


def _indented(lines: Any) -> Iterator[str]:
    return (f"  {line}" for line in lines)
