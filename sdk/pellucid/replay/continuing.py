"""What a recorded run was resumed with: decisions of persons, and results of other processes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pellucid import semconv
from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.claims import MemoryClaims
from pellucid.approvals.decisions import Decision
from pellucid.approvals.external import ExternalResult
from pellucid.replay import contents
from pellucid.replay.tape import TapedSpan
from pellucid.replay.taped_run import TapedRun
from pellucid.run.start import ResumeRequest
from pellucid.types import JSONObject

_DENIED: Final = re.compile(
    r"Not run: a person denied this call(?:: (.*?))?\. Do not retry unless asked to\.", re.DOTALL
)
_PAST: Final = 1.0


def resume_request(checkpoint: JSONObject, taped: TapedRun) -> ResumeRequest:
    """Return the request to resume a replayed run as the recorded run was."""
    spans = list(_spans_of(taped))
    decided = {
        (span.get(semconv.TOOL_NAME), span.get(semconv.TOOL_CALL_ID)): span
        for span in spans
        if span.get(semconv.APPROVAL_OUTCOME) in ("approved", "denied", "expired")
    }
    expired = {key for key, span in decided.items() if span.get(semconv.APPROVAL_OUTCOME) == "expired"}
    state = copy.deepcopy(checkpoint)
    _set_expiry(state, expired)
    decisions: list[Decision] = []
    for request in state.get("approvals", ()):
        key = (request["tool_name"], request["tool_call_id"])
        if key in decided and key not in expired:
            decisions.append(_decision(request, decided[key]))
        elif key not in expired and not _waits(taped):
            # There was a decision, but the run ended, or reached a limit, before it was applied.
            decisions.append(Decision(request["approval_id"], approved=False))
    known = {request.result_id for request in Checkpoint.from_dict(state).all_external}
    waits = [span for span in spans if span.phase == semconv.AWAIT and span.get(semconv.ASYNC_RESULT_ID) in known]
    results = [_result(span) for span in _in_order(waits, spans) if span.get(semconv.ASYNC_STATUS) != semconv.CANCELLED]
    return ResumeRequest(Checkpoint.from_dict(state), decisions, results, MemoryClaims())


def _waits(taped: TapedRun) -> bool:
    """Return whether a run has paused."""
    return taped.is_complete and taped.root.get(semconv.STOP_REASON) in ("awaiting_approval", "awaiting_tools")


def _spans_of(taped: TapedRun) -> Iterator[TapedSpan]:
    yield from taped.spans
    for nested in taped.nested.values():
        yield from _spans_of(nested)


def _set_expiry(state: dict[str, Any], expired: Iterable[tuple[Any, Any]]) -> None:
    """Let requests expire that had expired, and no others, in a checkpoint and in those of nested runs."""
    for request in state.get("approvals", ()):
        is_expired = (request["tool_name"], request["tool_call_id"]) in expired
        request["expires_at"] = _PAST if is_expired else None
    for nested in state.get("nested", {}).values():
        _set_expiry(nested, expired)


def _decision(request: dict[str, Any], span: TapedSpan) -> Decision:
    is_approved = span.get(semconv.APPROVAL_OUTCOME) == "approved"
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
