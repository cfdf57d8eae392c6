"""Decisions and external results with which a recorded run was resumed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from pellucid import semconv
from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.claims import MemoryClaims
from pellucid.approvals.decisions import Decision
from pellucid.approvals.external import ExternalResult
from pellucid.events import ApprovalDecided, ApprovalRequested
from pellucid.run.start import ResumeRequest
from pellucid.types import JSONObject
from pellucid_replay import contents
from pellucid_replay.questions import asked_in
from pellucid_replay.tape import TapedSpan
from pellucid_replay.taped_run import TapedRun

_DENIED: Final = re.compile(
    r"Not run: a person denied this call(?:: (.*?))?\. Do not retry unless asked to\.", re.DOTALL
)
_APPROVED: Final = frozenset({"approved", "awaiting"})
"""Outcomes on a call that was approved: `awaiting` is that of an agent that then paused itself."""

_DECIDED: Final = _APPROVED | {"denied", "expired"}
_PAST: Final = 1.0

_Place: TypeAlias = tuple[str, ...]
"""Ids of calls: of that which waits, after those of the agents that it is nested in."""


def resume_request(checkpoint: JSONObject, passes: Sequence[TapedRun]) -> ResumeRequest:
    """Return the request to resume a replayed run as the last of these recorded runs was, which continue each other."""
    taped = passes[-1]
    spans = list(_spans_of(taped))
    # A server may ask again in the call that was resumed: what waited was requested before.
    recorded = {place: approval_id for run in (taped, *passes[:-1]) for place, approval_id in _requested(run)}
    decided = {span.get(semconv.APPROVAL_ID): span for span in spans if span.get(semconv.APPROVAL_OUTCOME) in _DECIDED}
    dropped = {*_withdrawn(taped)} if _waits(taped) else {*recorded.values()}
    state = copy.deepcopy(checkpoint)
    decisions: dict[str, Decision] = {}
    for place, request in _requests(state):
        span = decided.get(approval_id := recorded.get(place))
        is_expired = span is not None and span.get(semconv.APPROVAL_OUTCOME) == "expired"
        request["expires_at"] = _PAST if is_expired else None
        if span is not None and not is_expired:
            decisions[request["approval_id"]] = _decision(request, span)
        elif span is None and approval_id in dropped:
            # There was a decision, but the run ended, or reached a limit, before it was applied.
            decisions[request["approval_id"]] = Decision(request["approval_id"], approved=False)
    known = {request.result_id for request in Checkpoint.from_dict(state).all_external}
    waits = [span for span in spans if span.phase == semconv.AWAIT and span.get(semconv.ASYNC_RESULT_ID) in known]
    results = [_result(span) for span in _in_order(waits, spans) if span.get(semconv.ASYNC_STATUS) != semconv.CANCELLED]
    return ResumeRequest(Checkpoint.from_dict(state), [*decisions.values()], results, MemoryClaims())


def _requested(taped: TapedRun, outer: _Place = ()) -> Iterator[tuple[_Place, str]]:
    """Yield the approval requests of a run and of those nested in it: calls from the outermost in, and recorded ids."""
    for event in taped.root.events:
        if event["name"] == ApprovalRequested.name:
            attributes = event["attributes"]
            yield (*outer, attributes[semconv.TOOL_CALL_ID]), attributes[semconv.APPROVAL_ID]
    for call_id, spans in taped.calls.items():
        for span in spans:
            for asked_id, approval_id in asked_in(span):
                yield (*outer, call_id, asked_id), approval_id
            if (nested := taped.nested.get(span.span_id)) is not None:
                yield from _requested(nested, (*outer, call_id))


def _requests(state: dict[str, Any], outer: _Place = ()) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """Yield the approval requests of a checkpoint, those of nested runs twice: each checkpoint on the way has them."""
    inner: dict[str, _Place] = {}
    for call_id, nested in state.get("nested", {}).items():
        for place, request in _requests(nested, (*outer, call_id)):
            inner[request["approval_id"]] = place
            yield place, request
    for request in state.get("approvals", ()):
        yield inner.get(request["approval_id"], (*outer, request["tool_call_id"])), request


def _withdrawn(taped: TapedRun) -> Iterator[str]:
    """Yield the ids of the requests that a run has withdrawn."""
    for event in taped.root.events:
        attributes = event["attributes"]
        if event["name"] == ApprovalDecided.name and attributes.get(semconv.APPROVAL_OUTCOME) == "withdrawn":
            yield attributes[semconv.APPROVAL_ID]


def _waits(taped: TapedRun) -> bool:
    """Return whether a run has paused."""
    return taped.is_complete and taped.root.get(semconv.STOP_REASON) in ("awaiting_approval", "awaiting_tools")


def _spans_of(taped: TapedRun) -> Iterator[TapedSpan]:
    yield from taped.spans
    for nested in taped.nested.values():
        yield from _spans_of(nested)


def _decision(request: dict[str, Any], span: TapedSpan) -> Decision:
    is_approved = span.get(semconv.APPROVAL_OUTCOME) in _APPROVED
    arguments = contents.value_of(span, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT_DIGEST)
    is_edited = is_approved and isinstance(arguments, dict) and arguments != request["arguments"]
    denial = None if is_approved else _DENIED.search(str(json.loads(span.get(semconv.TOOL_CALL_RESULT) or '""')))
    return Decision(
        request["approval_id"],
        approved=is_approved,
        reason=denial.group(1) if denial is not None else None,
        arguments=arguments if is_edited and isinstance(arguments, dict) else None,
        decided_by=span.get(semconv.APPROVAL_DECIDED_BY),
    )


def _in_order(waits: list[TapedSpan], spans: Iterable[TapedSpan]) -> list[TapedSpan]:
    """Return waits in the order in which the model has read their results."""
    read = "".join(str(span.get(semconv.INPUT_MESSAGES)) for span in spans if span.phase == semconv.INFERENCE)

    def place(span: TapedSpan) -> int:
        found = read.rfind(str(span.get(semconv.ASYNC_RESULT_ID)))
        return found if found >= 0 else len(read)

    return sorted(waits, key=place)


def _result(span: TapedSpan) -> ExternalResult:
    value = contents.value_of(span, semconv.OUTPUT, semconv.OUTPUT_DIGEST)
    return ExternalResult.of(str(span.get(semconv.ASYNC_RESULT_ID)), span.get(semconv.ASYNC_STATUS), value)
