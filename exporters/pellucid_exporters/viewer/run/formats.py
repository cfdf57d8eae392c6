"""Runs and spans as JSON and Markdown, to copy, to paste into an issue, or for other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid import semconv
from pellucid_exporters.stored import text
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.documents import (
    INPUTS,
    OUTPUTS,
    content_document,
    log_document,
    recorded_in,
    run_document,
    span_document,
)
from pellucid_exporters.stored.durations import took
from pellucid_exporters.stored.log_lines import LogLineWindow, log_line
from pellucid_exporters.stored.rows import RunRow, SpanRow
from pellucid_exporters.stored.sent_messages import SentMessage
from pellucid_exporters.viewer.run.gaps import Path
from pellucid_exporters.viewer.run.tree import RunTree, is_fault

MOST_SPANS: Final = 500
MOST_MESSAGES: Final = 20
LINES: Final = 1_000
"""Log lines in JSON."""
FEW_LINES: Final = 100
"""Log lines in Markdown."""
LONGEST: Final = 4_000
"""Characters of one text in Markdown; JSON has all of it."""

TYPES: Final = {"json": "application/json", "md": "text/markdown; charset=utf-8"}


def format_of(request: Request) -> str:
    """Return the format that an address asks for; empty for the page.

    Raises:
        HTTPException: 400, there is no such format.
    """
    name = request.query_params.get("format", "")
    if name and name not in TYPES:
        raise HTTPException(400, "The format in the address must be json or md.")
    return name


def answer(name: str, body: str) -> Response:
    """Return an answer in a format."""
    return Response(body.encode(errors="backslashreplace"), media_type=TYPES[name])


def run_json(tree: RunTree, path: Path | None, content: RunContent, log: LogLineWindow) -> str:
    """Return a run with its spans, all of their content, log lines, and its critical path in nanoseconds."""
    content.load(tree.spans, {name for span in tree.spans for name in span.attributes})
    spans = [_whole(span, content, path) for span in tree.spans]
    times = path.times if path is not None else None
    document = {"run": run_document(tree.run), "critical_path": times, "spans": spans, "log": log_document(log)}
    return json.dumps(document, indent=1, default=str)


def span_json(span: SpanRow, content: RunContent, log: LogLineWindow) -> str:
    """Return a span with what went in and out of it, and its log lines; of a model call the whole request."""
    document = {**_whole(span, content, None), "content": content_document(content, span), "log": log_document(log)}
    return json.dumps({"span": document}, indent=1, default=str)


def _whole(span: SpanRow, content: RunContent, path: Path | None) -> dict[str, Any]:
    """Return the JSON of a span with its large texts in place, and its nanoseconds on the critical path."""
    document = {
        **span_document(span),
        "attributes": content.whole(span.attributes),
        "events": content.whole(span.events),
    }
    return document if path is None else {**document, "critical": path.spans.get(span.span_id, 0)}


def run_markdown(
    tree: RunTree,
    path: Path | None,
    messages: Sequence[SentMessage],
    question: str,
    reply: str,
    log: LogLineWindow,
) -> str:
    """Return a run as Markdown: question and answer, why it failed, where its time went, spans, and conversation."""
    parts = (_run_lines(tree, path, messages, question, reply), _log_lines(log, tree.run.start))
    return "\n".join(line for part in parts for line in part)


def _run_lines(
    tree: RunTree, path: Path | None, messages: Sequence[SentMessage], question: str, reply: str
) -> Iterator[str]:
    run = tree.run
    yield f"# {_line(run.agent)} `{run.run_id}`: {run.status}\n"
    yield from _facts(run)
    for title, value in (("Question", question), ("Answer", reply), (f"Why it ended: {run.status}", run.error or "")):
        if value:
            yield from (f"\n## {title}\n", _fenced(value))
    if path is not None and path.duration:
        yield "\n## Where the time went\n"
        for name, time in path.times.items():
            yield f"- {name}: {text.duration(time)} ({100 * time / path.duration:.0f} %)"
    yield from ("\n## Spans\n", _fenced("\n".join(_tree_lines(tree, path))))
    if messages:
        left = len(messages) - MOST_MESSAGES
        yield "\n## Conversation\n" + (f"\nThe last {MOST_MESSAGES} of {len(messages)} messages.\n" if left > 0 else "")
        for item in messages[-MOST_MESSAGES:]:
            yield from _message_lines(item)


def _facts(run: RunRow) -> Iterator[str]:
    total = f"; {text.money(run.total.cost)} {text.nested(run.total.runs)}" if run.total is not None else ""
    yield f"- started {text.stamp(run.start)}, took {took(run)}, {run.iterations} iterations"
    yield f"- {text.count(run.input_tokens)} tokens in, {text.count(run.output_tokens)} out"
    yield f"- cost {text.money(run.cost)}{total}"
    for score in run.scores:
        value = f"{score.value:.4g}" if score.value is not None else ""
        facts = (value, score.label, score.error_type, f"by {score.by}" if score.by else "")
        yield f"- score {_line(score.name)}: {_line(', '.join(filter(None, facts)))}"
    if run.models:
        yield f"- models {_line(', '.join(run.models))}"
    if run.error_type:
        yield f"- error {_line(run.error_type)}"
    yield f"- trace `{run.trace_id}`"


def _tree_lines(tree: RunTree, path: Path | None) -> Iterator[str]:
    """Yield a line for each span; `*` marks the critical path, `!` what went wrong."""
    for span in tree.order[:MOST_SPANS]:
        marks = ("!" if is_fault(span) else " ") + ("*" if path is not None and span.span_id in path.spans else " ")
        indent = "  " * min(max(0, tree.depths[span.span_id] + 1), 12)
        reason = _flat(text.short(span.error or span.error_type or "", 120)) if is_fault(span) else ""
        yield f"{marks} {took(span):>9}  {indent}{_flat(text.cut(span.name, 100))}  {reason}".rstrip()
    if len(tree.order) > MOST_SPANS:
        yield f"... {len(tree.order) - MOST_SPANS:,} more spans"


def _message_lines(item: SentMessage) -> Iterator[str]:
    if item.message is None:
        yield f"\n*{item.missing} messages not recorded*"
        return
    yield f"\n**{_line(text.cut(str(item.message.get('role', '?')), 40))}**\n"
    parts = item.message.get("parts")
    for part in parts if isinstance(parts, list) else [item.message]:
        content = part.get("content") if isinstance(part, dict) and part.get("type") in {"text", "reasoning"} else None
        yield _fenced(content if isinstance(content, str) else _json(part))


def _log_lines(log: LogLineWindow, start: int) -> Iterator[str]:
    """Yield log lines, each on a line of its own, with the types and messages of exceptions."""
    rows = log.rows[-FEW_LINES:]
    if rows:
        yield "\n## Log lines\n" + (f"\nThe last {len(rows)} of {log.total}.\n" if len(rows) < log.total else "")
        yield _fenced("\n".join(log_line(row, start, 300) for row in rows), FEW_LINES * 400)


def span_markdown(run: RunRow, span: SpanRow, content: RunContent, log: LogLineWindow) -> str:
    """Return a span as Markdown: what went in and out, why it failed, its attributes, and log lines."""
    return "\n".join([*_span_lines(run, span, content), *_log_lines(log, span.start)])


def _span_lines(run: RunRow, span: SpanRow, content: RunContent) -> Iterator[str]:
    yield f"# {_line(text.cut(span.name, 120))}: {span.status}\n"
    yield f"- span {span.sequence} (`{span.span_id}`) of run `{run.run_id}`, trace `{span.trace_id}`"
    yield f"- took {took(span)}, {text.duration(max(0, span.start - run.start))} after the start of the run"
    if span.error or span.error_type:
        yield from ("\n## Why it failed\n", _fenced(f"{span.error_type or 'error'}: {span.error or ''}"))
    for title, names in (("In", INPUTS), ("Out", OUTPUTS)):
        recorded = recorded_in(content, span, names)
        if recorded is not None:
            yield from (f"\n## {title}\n", _fenced(_json(recorded.value)))
    shown = {name: value for name, value in span.attributes.items() if name not in {*INPUTS, *OUTPUTS}}
    shown.pop(semconv.AGENT_CONFIGURATION, None)
    yield from ("\n## Attributes\n", _fenced(_json(shown)))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _fenced(value: str, longest_text: int = LONGEST) -> str:
    """Return a text in a fence that it cannot close; what is long is cut."""
    rest = f"\n... {len(value) - longest_text:,} more characters" if len(value) > longest_text else ""
    shown = text.visible(text.cut(value, longest_text))
    longest = max((len(found) for found in re.findall("`{3,}", shown)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{shown}{rest}\n{fence}"


def _line(value: str) -> str:
    """Return a text on one line, without what Markdown would read as markup."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", _flat(value))


def _flat(value: str) -> str:
    """Return a text on one line."""
    return " ".join(text.visible(value).split())
