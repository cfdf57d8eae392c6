"""Messages of a recorded run, as a run has them; missing or cut content is known by its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.messages import Message, ToolCall, ToolResult, load_messages
from pellucid.telemetry import CapturePolicy
from pellucid.telemetry.content import Capturer
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import RUNNING, SpanRow
from pellucid_exporters.stored.sent_messages import SentRequest


class Incomplete(Exception):
    """Content was not recorded, or was cut."""


def asked(content: RunContent, root: SpanRow) -> Sequence[Message]:
    """Return the messages with which a run started.

    Raises:
        Incomplete: they were not recorded, or were cut.
    """
    found = content.get(root, semconv.INPUT_MESSAGES)
    return _whole(_loaded(found.value if found is not None else None), root)


def conversation(content: RunContent, root: SpanRow, dispatches: Mapping[str, SpanRow]) -> Iterator[Message]:
    """Yield the messages of a run: what each model call sent that the one before had not, its answer, and the results.

    Args:
        content: Content of the run.
        root: Span of the run.
        dispatches: Calls of tools by their ids, also those of runs that it continues.

    Raises:
        Incomplete: one was not recorded, or was cut.
    """
    yield from _with_facts([*_recorded(content, root, dispatches)], dispatches)


def _recorded(content: RunContent, root: SpanRow, dispatches: Mapping[str, SpanRow]) -> Iterator[Message]:
    calls = _main_calls(content.spans, root)
    if not calls:
        yield from asked(content, root)
        return
    before: Sequence[Message] = ()
    for index, call in enumerate(calls):
        sent = _sent(content.request(call))
        if index + 1 == len(calls) or not _continues(content, calls[index + 1], call):
            _whole(sent, call)
        if not index or _continues(content, call, calls[index - 1]):
            new = sent[len(before) :]
        else:  # earlier messages were left out, or summarized
            answered = [place for place, message in enumerate(sent) if message.role == "assistant"]
            new = sent[answered[-1] :] if answered else sent
        yield from new
        before = sent
    if calls[-1].status == semconv.COMPLETED:
        last = answer(content, calls[-1])
        yield last
        results = [_result(item, dispatches, content) for item in last.tool_calls]
        if found := [item for item in results if item is not None]:
            yield Message("tool", found)


def answer(content: RunContent, span: SpanRow) -> Message:
    """Return the answer of a model call, or of a run.

    Raises:
        Incomplete: it was not recorded, or was cut.
    """
    found = content.get(span, semconv.OUTPUT_MESSAGES)
    messages = _loaded(found.value if found is not None else None)
    for message in messages:
        for same in (message, Message(message.role, message.parts)):  # the reason is that of the call, or its own
            if _capturer().answer(same, "stop").digest == span.attributes.get(semconv.OUTPUT_DIGEST):
                return same
    raise Incomplete


def _main_calls(spans: Sequence[SpanRow], root: SpanRow) -> list[SpanRow]:
    """Return the model calls of the loop: those that answered, and the last one; summaries are below other spans."""
    calls = [span for span in spans if span.phase == semconv.INFERENCE and span.parent_span_id == root.span_id]
    return [call for call in calls if call.status == semconv.COMPLETED or call is calls[-1]]


def _continues(content: RunContent, call: SpanRow, before: SpanRow) -> bool:
    """Return whether a model call recorded only what an earlier one had not sent."""
    holder = content.span(call.attributes.get(semconv.CONTENT_RECORDED_ON))
    while holder is not None and holder.sequence > before.sequence:
        holder = content.span(holder.attributes.get(semconv.CONTENT_RECORDED_ON))
    return holder is before


def _sent(request: SentRequest) -> Sequence[Message]:
    if not request.is_recorded or request.missing:
        raise Incomplete
    return _loaded([message.message for message in request.messages])


def _loaded(value: object) -> Sequence[Message]:
    try:
        return load_messages(value)
    except ConfigError as error:
        raise Incomplete from error


def _whole(messages: Sequence[Message], span: SpanRow) -> Sequence[Message]:
    """Return the messages of a span whose digest says that they are whole."""
    captured = _capturer().messages(messages)
    facts = span.attributes
    if (captured.digest, captured.size) != (facts.get(semconv.INPUT_DIGEST), facts.get(semconv.INPUT_BYTES)):
        raise Incomplete
    return messages


def _capturer() -> Capturer:
    return Capturer(CapturePolicy("full", max_bytes=2**30, max_span_bytes=2**30))


def _with_facts(messages: Sequence[Message], dispatches: Mapping[str, SpanRow]) -> Iterator[Message]:
    """Yield messages whose results have what the conventions' shape lacks: the tool, and whether it failed.

    Of calls of earlier conversations, it is not known whether they failed.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for message in messages:
        parts = [
            replace(part, name=names.get(part.id, ""), is_error=_failed(dispatches.get(part.id)))
            if isinstance(part, ToolResult)
            else part
            for part in message.parts
        ]
        yield Message(message.role, parts, message.finish_reason)


def _failed(call: SpanRow | None) -> bool:
    return call is not None and call.error_type is not None


def _result(call: ToolCall, dispatches: Mapping[str, SpanRow], content: RunContent) -> ToolResult | None:
    """Return the result of a call that no model call has sent, as when a limit ended the run."""
    span = dispatches.get(call.id or "")
    if span is None or span.status == RUNNING or semconv.OUTPUT_DIGEST not in span.attributes:
        return None
    found = content.get(span, semconv.TOOL_CALL_RESULT)
    if found is None or _capturer().value(found.value).digest != span.attributes[semconv.OUTPUT_DIGEST]:
        raise Incomplete
    return ToolResult(call.id or "", found.value)
