"""The trace as one tree, from the files of spans that the processes wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pellucid.text import clean
from pellucid_commands.demo.durable.jobs import OUTCOME
from pellucid_exporters.console.tree import Line, Node, Word, lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

MISSING: Final = "demo.missing"
"""Attribute of the placeholder of a span that was never exported."""


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """A span, and the name of the process that exported it."""

    process: str
    span: ReadableSpan

    @property
    def context(self) -> SpanContext:
        """Context of the span."""
        context = self.span.get_span_context()
        assert context is not None
        return context


def read_spans(folder: Path) -> list[ProcessSpan]:
    """Return the spans of all processes, in order of their starts."""
    spans = [
        ProcessSpan(path.stem, _span(json.loads(line)))
        for path in folder.glob("*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    return sorted(spans, key=lambda item: item.span.start_time or 0)


def tree_of(spans: Sequence[ProcessSpan], submission: SpanContext | None, killed: Collection[str]) -> list[Line]:
    """Return the lines of the tree below the first span, with the process of each span in front.

    Args:
        spans: Spans of all processes, in order of their starts.
        submission: Span that submitted the run.
        killed: Names of the processes that were killed.
    """
    owners = {item.context.span_id: item.process for item in spans}
    nodes = {item.context.span_id: Node(item.span) for item in spans}
    root = nodes[spans[0].context.span_id]
    for item in spans:
        parent = item.span.parent
        if parent is None or item.span is root.span:
            continue
        if parent.span_id not in nodes:
            # The first pass is below the span that submitted the run.
            nodes[parent.span_id] = Node(_missing(parent, item.span, is_killed=item.process in killed))
            owners[parent.span_id] = item.process
            above = nodes.get(submission.span_id, root) if submission is not None else root
            above.children.append(nodes[parent.span_id])
        nodes[parent.span_id].children.append(nodes[item.context.span_id])
    width = max(map(len, owners.values()))
    return [_marked(line, node.span, owners, width) for line, node in zip(lines(root), _in_order(root), strict=True)]


def _in_order(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _in_order(child)


def _marked(line: Line, span: ReadableSpan, owners: dict[int, str], width: int) -> Line:
    context = span.get_span_context()
    assert context is not None
    process = owners[context.span_id]
    attributes = span.attributes or {}
    words = [Word(f"  {process.ljust(width)}  ", "fact"), *line]
    if MISSING in attributes:
        without = [word._replace(text="-".rjust(len(word.text))) if word.style == "number" else word for word in words]
        return [*without, Word(f"  {clean(attributes[MISSING])}", "bad")]
    if OUTCOME in attributes:
        return [*words, Word(f"  {clean(attributes[OUTCOME])}", "fact")]
    return words


def _missing(context: SpanContext, child: ReadableSpan, *, is_killed: bool) -> ReadableSpan:
    """Return a placeholder of a span that other spans have as their parent, and no process has exported."""
    return ReadableSpan(
        name=f"(no span {context.span_id:016x})",
        context=context,
        attributes={MISSING: "killed before it ended" if is_killed else "not exported"},
        start_time=child.start_time,
        end_time=child.start_time,
    )


def _span(record: dict[str, Any]) -> ReadableSpan:
    """Return a span from its line in a file."""
    context = _context(record)
    start = _nanoseconds(record["time"])
    return ReadableSpan(
        name=record["name"],
        context=context,
        parent=_context({**record, "span_id": parent}) if (parent := record.get("parent_span_id")) else None,
        attributes=record["attributes"],
        links=[Link(_context(link), link["attributes"]) for link in record["links"]],
        kind=SpanKind[record["kind"].upper()],
        instrumentation_scope=InstrumentationScope(record["scope"], record.get("scope_version")),
        status=Status(StatusCode[record["status"].upper()], record.get("status_text")),
        start_time=start,
        end_time=start + round(record["duration_ms"] * 1e6),
    )


def _context(record: dict[str, Any]) -> SpanContext:
    ids = int(record["trace_id"], 16), int(record["span_id"], 16)
    return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(time: str) -> int:
    """Return nanoseconds since the epoch from ISO 8601 with nine digits after the second."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 1_000_000_000 + int(fraction)
