"""Passes whose process was killed: what the journal knows of their spans, which they could not end themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext

from pellucid import semconv
from pellucid.durable.states.records import span_of
from pellucid.durable.store import CallRecord, Claim, JournalEntry
from pellucid.durable.store.retries import RETRIED
from pellucid.errors import PassLost, ToolError
from pellucid.messages import ToolCall
from pellucid.run.journal import BEGUN, RESULT, STARTED
from pellucid.run.pausing.fold import INTERRUPTED
from pellucid.run.state import Run
from pellucid.telemetry import DISPATCH, RUN, Scope, boundary
from pellucid.telemetry.restored import restored
from pellucid.types import JSONObject, JSONValue

_LOST: Final = "the process ended before this pass did; another pass continues the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpan:
    """A span that its process did not end: of a pass, of a sub-agent's run, or of a call.

    Attributes:
        step: Its step in the journal: of `invoke_agent` the step `begun`, of `execute_tool` the step `started`.
        parent: The span above it; invalid if it has none.
        agent: Name of its agent.
        lost_at: When its process was found to have ended, in nanoseconds since the epoch.
    """

    step: Mapping[str, Any]
    span: SpanContext
    parent: SpanContext
    agent: str
    lost_at: int


def open_spans(claim: Claim) -> list[OpenSpan]:
    """Return the spans of the passes that were killed since the last one ended, outermost first.

    A pass that was stopped has ended its spans. When a killed one ended is not known: its lease had ended then. Those
    before the run was retried are recorded: it had ended.
    """
    recorded = max((entry.fence for entry in claim.journal if entry.key.startswith(f"{RETRIED}:")), default=0)
    begun = {entry.fence: value for entry, value in _of(claim.journal, BEGUN) if not value.get("is_nested")}
    lost = _lost(claim.run.fence, claim.expired_leases, claim.run.due_at)
    for fence, value in begun.items():
        if fence < claim.run.fence:
            lost |= _lost(fence, value["expired_leases"], value["due_at"])
    ended = _Ended(claim.journal, claim.calls)
    return [
        span
        for fence, lost_at in sorted(lost.items())
        if fence > recorded
        for span in _spans(claim.journal, fence, lost_at, ended)
    ]


def last_span(claim: Claim) -> SpanContext | None:
    """Return the span of the latest pass since the last one that ended; None if there is none, or it has no ids."""
    begun = [value for _, value in _of(claim.journal, BEGUN) if not value.get("is_nested")]
    return span_of(begun[-1]["trace"]) if begun else None


def _lost(fence: int, expired_leases: int, due_at: float | None) -> dict[int, float]:
    """Return the claims before one whose leases had expired, and when the last of these had: as late as can be."""
    return {fence - number: due_at or 0.0 for number in range(1, expired_leases + 1)}


def _of(journal: Iterable[JournalEntry], *steps: str) -> list[tuple[JournalEntry, dict[str, Any]]]:
    """Return the entries of these kinds that have the ids of a span; those of earlier releases have none."""
    values = [(entry, cast("dict[str, Any]", entry.value)) for entry in journal if isinstance(entry.value, dict)]
    return [(entry, value) for entry, value in values if value.get("step") in steps and "trace" in value]


class _Ended:
    """Calls that have ended, as the journal and the rows of the calls tell."""

    def __init__(self, journal: Sequence[JournalEntry], calls: Iterable[CallRecord]) -> None:
        prefix = f"{RESULT}:"
        self._keys = {entry.key.removeprefix(prefix) for entry in journal if entry.key.startswith(prefix)}
        self._calls = {
            (entry.fence, value["run_id"], value["call_id"])
            for entry in journal
            if isinstance(entry.value, dict)
            and (value := cast("dict[str, Any]", entry.value)).get("step") == RESULT
            and "run_id" in value
        }
        dispatched = {call.id: call.dispatched_at for call in calls if call.dispatched_at is not None}
        marked: dict[
            str, int
        ] = {}  # of several passes that dispatched a call, the last one before its mark has marked it
        for entry, value in _of(journal, STARTED):
            result_id = value.get("result_id")
            if result_id in dispatched and entry.created_at <= dispatched[result_id]:
                marked[result_id] = entry.seq
        self._marked = {*marked.values()}

    def has(self, entry: JournalEntry, value: Mapping[str, Any]) -> bool:
        """Return whether the call that a step has started has ended."""
        return (
            (entry.fence, value["run_id"], value["call_id"]) in self._calls
            or entry.key.removeprefix(f"{STARTED}:") in self._keys
            or entry.seq in self._marked
        )


def _spans(journal: Sequence[JournalEntry], fence: int, lost_at: float, ended: _Ended) -> list[OpenSpan]:
    """Return the spans of one pass; what is below a call that has ended has ended, too."""
    steps = [(entry, value) for entry, value in _of(journal, BEGUN, STARTED) if entry.fence == fence]
    until = max([int(lost_at * 1e9), *(value["start"] for _, value in steps)])  # the clocks may differ
    found: dict[int, OpenSpan] = {}
    runs: dict[str, OpenSpan] = {}
    for entry, value in steps:
        span = span_of(value["trace"])
        if span is None or (value["step"] == STARTED and ended.has(entry, value)):
            continue
        outer = runs.get(value["run_id"])
        parent = span_of(value["parent"]) if value["step"] == BEGUN else outer.span if outer is not None else None
        if value["step"] == STARTED and outer is None:
            continue
        if value.get("is_nested") and (parent is None or parent.span_id not in found):
            continue
        open_span = OpenSpan(
            step=value,
            span=span,
            parent=parent or INVALID_SPAN_CONTEXT,
            agent=value["agent"] if outer is None else outer.agent,
            lost_at=until,
        )
        found[span.span_id] = open_span
        if value["step"] == BEGUN:
            runs[value["run_id"]] = open_span
    return list(found.values())


def record(claim: Claim, run: Run, calls: Iterable[ToolCall]) -> None:
    """Record the spans of killed passes, with their measurements, log lines and events.

    Args:
        claim: Claim of the durable run.
        run: Run of the pass that records them.
        calls: Calls of the message at which the run was interrupted, whose arguments are recorded.
    """
    arguments = {call.id: call.arguments for call in calls}
    for open_span in open_spans(claim):
        step = open_span.step
        scope = Scope(
            agent=open_span.agent,
            run_id=step["run_id"],
            identity=run.scope.identity,
            pipeline=run.scope.pipeline,
            listeners=(run.setup.listeners,),
        )
        with restored(scope, open_span.span, open_span.parent):
            if step["step"] == BEGUN:
                _record_pass(scope, open_span)
            else:
                _record_call(scope, open_span, None if step.get("is_nested") else arguments.get(step["call_id"]))


def _record_pass(scope: Scope, open_span: OpenSpan) -> None:
    step = open_span.step
    with boundary(scope, RUN, open_span.agent, start=step["start"], end=open_span.lost_at, **step["facts"]) as b:
        b.note(finish_reasons=("error",))
        for link in step["links"]:
            if (span := span_of(link)) is not None:
                b.link(span)
        b.fail(PassLost(_LOST))


def _record_call(scope: Scope, open_span: OpenSpan, arguments: JSONObject | str | None) -> None:
    step = open_span.step
    scope.iteration = step["iteration"]
    with boundary(scope, DISPATCH, step["tool"], start=step["start"], end=open_span.lost_at, **step["facts"]) as b:
        if arguments is not None:
            b.input(cast("JSONValue", arguments))
        if not step["can_repeat"]:
            b.output(INTERRUPTED)
        b.fail(ToolError(INTERRUPTED, error_type=semconv.INTERRUPTED))
