"""Evidence of a recorded run, for scorers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Final

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.messages import Usage
from pellucid.run.structured_output import answer_text, unfenced
from pellucid.scores.evidence import Evidence, SpanFacts, ToolUse, question_of, since_question, tool_uses
from pellucid.scores.scored import Scored
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.recorded_messages import Incomplete, answer, asked, conversation
from pellucid_exporters.stored.rows import AWAITING, RUNNING, STOP_REASONS, RunRow, SpanRow, text_of

_LIMITS: Final = frozenset(reason for reason in STOP_REASONS if reason.startswith("max_") or reason == "budget")
_MESSAGES: Final = frozenset({"messages", "tools"})
_COUNTS: Final[Mapping[str, tuple[str, type[int | float]]]] = {
    "input_tokens": (semconv.USAGE_INPUT_TOKENS, int),
    "output_tokens": (semconv.USAGE_OUTPUT_TOKENS, int),
    "cache_read_input_tokens": (semconv.USAGE_CACHE_READ_INPUT_TOKENS, int),
    "cache_write_input_tokens": (semconv.USAGE_CACHE_WRITE_INPUT_TOKENS, int),
    "reasoning_output_tokens": (semconv.USAGE_REASONING_OUTPUT_TOKENS, int),
    "cost": (semconv.COST_USD, float),
}


def evidence_of_run(reader: Recording, run: RunRow | str) -> Evidence:
    """Return what scorers see of a finished run of a recording.

    Content that was not recorded, or was cut, is in `missing`, so that scorers that need it say so. If the agent has an
    output type, the output is its JSON value.

    Args:
        reader: The recording.
        run: The run, its id, or an unambiguous beginning of it.

    Raises:
        ConfigError: there is no such run, or it has not ended.
    """
    row = reader.run(run) if isinstance(run, str) else run
    if row is None:
        raise ConfigError(f"there is no run {run!r} in this recording, or several start with it")
    if row.status == RUNNING:
        raise ConfigError(f"run {row.run_id} has not ended")
    spans = reader.spans(row.run_id)
    root = next((span for span in spans if span.phase == semconv.RUN), None)
    if root is None:
        raise ConfigError(f"the recording has no span of run {row.run_id}; it may have begun before the oldest one")
    content = RunContent(reader, spans)
    content.load(spans, {name for span in spans for name in span.attributes})
    passes = _passes(reader, row, spans)
    dispatches = _dispatches(span for each in reversed(passes.values()) for span in each)  # the latest is the last
    missing: set[str] = set()
    try:
        messages = tuple(conversation(content, root, dispatches))
        tools = tool_uses(since_question(messages))
    except Incomplete:
        missing |= _MESSAGES
        messages, tools = (), tuple(_uses(spans))
    try:
        question = question_of(asked(content, root))
    except Incomplete:
        question = ""
        missing.add("input")
    try:
        output = _output(content, row, root)
    except Incomplete:
        output = None
        missing.add("output")
    models = row.models if len(row.models) == 1 else ()
    return Evidence(
        scored=Scored(
            trace_id=root.trace_id,
            span_id=root.span_id,
            run_id=row.run_id,
            agent=row.agent,
            version=row.version or "",
            model=text_of(root.attributes, semconv.REQUEST_MODEL) or next(iter(models), ""),
        ),
        input=question,
        output=output,
        messages=messages,
        tools=tools,
        spans=tuple(_facts(span, content) for span in spans),
        usage=_usage(reader, row, passes),
        seconds=_seconds(root) if semconv.RESUMED_FROM not in root.attributes else None,
        iterations=row.iterations,
        status=_status(row),
        missing=frozenset(missing),
    )


def _status(row: RunRow) -> str:
    """Return the status that the result of a run has; `failed` if it has none."""
    if row.status in AWAITING:
        return row.status
    if row.status != semconv.COMPLETED:
        return "failed"
    return "limit_reached" if row.stop_reason in _LIMITS else "completed"


def _seconds(span: SpanRow) -> float | None:
    end = span.end or span.seen_until
    return (end - span.start) / 1e9 if end is not None else None


def _facts(span: SpanRow, content: RunContent) -> SpanFacts:
    return SpanFacts(
        name=span.name,
        span_id=span.span_id,
        parent_id=span.parent_span_id or "",
        attributes=content.whole(dict(span.attributes)),
        seconds=_seconds(span) or 0.0,
        error_type=span.error_type or "",
        events=tuple(content.whole(dict(event)) for event in span.events),
    )


def _passes(reader: Recording, row: RunRow, spans: Sequence[SpanRow]) -> dict[str, Sequence[SpanRow]]:
    """Return the spans of a run, and of those that it continues, such as one that waited for an approval, by run."""
    found: dict[str, Sequence[SpanRow]] = {}
    current: str | None = row.run_id
    while current is not None and current not in found:
        found[current] = spans if current == row.run_id else reader.spans(current)
        root = next((span for span in found[current] if span.phase == semconv.RUN), None)
        current = text_of(root.attributes, semconv.RESUMED_FROM) if root is not None else None
    return found


def _dispatches(spans: Iterable[SpanRow]) -> dict[str, SpanRow]:
    """Return the calls of tools by their ids."""
    found: dict[str, SpanRow] = {}
    for span in spans:
        call_id = text_of(span.attributes, semconv.TOOL_CALL_ID)
        if span.phase == semconv.DISPATCH and call_id is not None:
            found[call_id] = span
    return found


def _uses(spans: Sequence[SpanRow]) -> Iterator[ToolUse]:
    """Yield the calls of tools without arguments and results, which were not recorded, or only in part."""
    for span in spans:
        if span.phase == semconv.DISPATCH:
            name = text_of(span.attributes, semconv.TOOL_NAME) or ""
            is_answered = span.status not in {RUNNING, semconv.CANCELLED}
            yield ToolUse(name=name, arguments="", is_error=span.error_type is not None, is_answered=is_answered)


def _output(content: RunContent, row: RunRow, root: SpanRow) -> Any:
    """Return the answer: its text, or its value if the agent has an output type; None if there is none.

    Raises:
        Incomplete: it was not recorded, or was cut.
    """
    if row.status != semconv.COMPLETED or semconv.OUTPUT_DIGEST not in root.attributes:
        return None
    message = answer(content, root)
    if root.attributes.get(semconv.OUTPUT_TYPE) != "json":
        return message.text
    try:
        value = json.loads(unfenced(answer_text(message)))
    except (ValueError, RecursionError):  # a limit cut it off
        return None
    return value["result"] if isinstance(value, dict) and "result" in value and _is_wrapped(content, root) else value


def _is_wrapped(content: RunContent, root: SpanRow) -> bool:
    """Return whether the output type is none of an object, so that the answer is an object around its value."""
    found = content.get(root, semconv.AGENT_CONFIGURATION)
    schema = found.value.get("output_schema") if found is not None and isinstance(found.value, dict) else None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return False
    return schema.get("title") == "Output" and [*schema["properties"]] == ["result"]


def _usage(reader: Recording, row: RunRow, passes: Mapping[str, Sequence[SpanRow]]) -> Usage:
    """Return the usage of the model calls of a run, of those that it continues, and of those nested in it."""
    spans = dict(passes)
    for other in reader.trace(row.trace_id):  # in the order of their starts
        if other.parent_run_id in spans:
            spans[other.run_id] = reader.spans(other.run_id)
    calls = [span for each in spans.values() for span in each if span.phase == semconv.INFERENCE]
    return reduce(add, map(_usage_of, calls), Usage())


def _usage_of(call: SpanRow) -> Usage:
    counts: dict[str, Any] = {}
    for name, (attribute, kind) in _COUNTS.items():
        value = call.attributes.get(attribute)
        if isinstance(value, kind) or (kind is float and isinstance(value, int)):
            counts[name] = value
    return Usage(**counts)
