"""The runs that lead to a recorded one: after approvals and results, or after a process ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from pellucid import semconv
from pellucid.errors import ToolError
from pellucid.messages import ToolResult
from pellucid.run.pausing.fold import INTERRUPTED
from pellucid.telemetry.sanitize import dumps
from pellucid_replay import contents
from pellucid_replay.tape import Tape, TapedSpan, TapeError
from pellucid_replay.taped_run import TapedRun

_INTERRUPTED: Final = dumps(INTERRUPTED).removesuffix('"')
"""Beginning of the JSON of the result of a call that was interrupted; a note may follow."""

_OF_INPUT: Final = (semconv.INPUT_MESSAGES, semconv.INPUT_DIGEST, semconv.INPUT_BYTES, semconv.RESUMED_FROM)


def passes_of(tape: Tape) -> list[TapedRun]:
    """Return the runs that lead to the run of a tape, oldest first: each continues the one before it, which had paused.

    A durable run that was interrupted and the pass that continues it are one run: a replay is not interrupted.

    Raises:
        TapeError: one of them is missing.
    """
    roots = {span.run_id: span for span in tape.spans if span.phase == semconv.RUN}
    passes: list[TapedRun] = []
    current: str | None = tape.run_id
    while current is not None:
        if current not in roots:
            raise TapeError(f"run {tape.run_id} cannot be replayed: run {current}, which it continues, is not recorded")
        root = roots.pop(current)
        run = TapedRun(tape, root)
        if passes and not run.is_complete:
            passes[0] = _joined(run, passes[0])
        else:
            passes.insert(0, run)
        current = root.get(semconv.RESUMED_FROM)
    return passes


def _joined(first: TapedRun, second: TapedRun) -> TapedRun:
    """Return a run that was interrupted and the one that continued it as one."""
    attributes = {name: value for name, value in second.root.attributes.items() if name not in _OF_INPUT}
    attributes |= {name: value for name in _OF_INPUT if (value := first.root.get(name)) is not None}
    events = (*first.root.events, *second.root.events)
    root = replace(second.root, start=first.root.start, attributes=attributes, events=events)
    repeated = {span.iteration for span in second.spans if span.phase == semconv.COMPOSE}
    spans = [root, *_before(first, second, repeated)]
    for span in second.spans:
        # To run the calls of an answer, the tools were listed again.
        is_again = span.phase == semconv.DISCOVERY and span.iteration not in repeated
        if span is not second.root and not is_again:
            spans.append(span)
    return TapedRun(first.tape, root, [_below(root, first.root, span) for span in spans], is_joined=True)


def _before(first: TapedRun, second: TapedRun, repeated: set[int | None]) -> Iterator[TapedSpan]:
    """Yield what an interrupted run had done, and the one that continued it did not do again."""
    for span in first.spans:
        is_call = span.phase == semconv.DISPATCH
        call_id = str(span.get(semconv.TOOL_CALL_ID))
        again = is_call and any(other.iteration == span.iteration for other in second.calls.get(call_id, ()))
        if span is first.root or again or (not is_call and span.iteration in repeated):
            continue
        text = _result_read(first.tape, call_id) if is_call else None
        is_lost = text is not None and text.startswith(_INTERRUPTED)  # the pass ended before the result was written
        if span.end is not None and span.outcome != semconv.CANCELLED and not is_lost:
            yield span
        elif text is not None:
            yield _failed(span, text)


def _result_read(tape: Tape, call_id: str) -> str | None:
    """Return the JSON of the result that the model read for a call that was interrupted and could not be repeated."""
    for span in tape.spans:
        messages = contents.parsed(span, semconv.INPUT_MESSAGES, list) if span.phase == semconv.INFERENCE else None
        for message in messages or ():
            for part in message.get("parts", ()):
                if part.get("type") == ToolResult.type and part.get("id") == call_id:
                    return dumps(part.get("response"))
    return None


def _failed(span: TapedSpan, text: str) -> TapedSpan:
    """Return an interrupted call as one that failed with a result."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    result = {semconv.TOOL_CALL_RESULT: text, semconv.OUTPUT_DIGEST: digest}
    error = {semconv.ERROR_TYPE: ToolError.__name__, semconv.OUTCOME: semconv.FAILED}
    return replace(
        span,
        end=span.end or span.start,
        outcome=semconv.FAILED,
        error_type=ToolError.__name__,
        attributes={**span.attributes, **result, **error},
    )


def _below(root: TapedSpan, other: TapedSpan, span: TapedSpan) -> TapedSpan:
    return replace(span, parent_span_id=root.span_id) if span.parent_span_id == other.span_id else span
