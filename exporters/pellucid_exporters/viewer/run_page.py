"""The page of a run: what went wrong, its model calls, and the waterfall."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid import semconv
from pellucid.semconv.budgets import BUDGET_NAMES, BUDGET_USED
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.durations import end_of
from pellucid_exporters.stored.nested import nested_runs
from pellucid_exporters.stored.rows import RUNNING, RunRow, SpanRow
from pellucid_exporters.viewer.pages import reader_of, render, run_of
from pellucid_exporters.viewer.span_page import tool_names
from pellucid_exporters.viewer.waterfall import MOST_OPEN, is_fault, ticks, waterfall

PHASES: Final = (semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH)
MOST_FAULTS: Final = 20
MOST_CALLS: Final = 100
MOST_EVENTS: Final = 200
MOST_RELATED: Final = 50
MOST_MESSAGES: Final = 50
"""Messages of a conversation that the page shows, the latest."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call as the page lists it; the span's attributes have the rest."""

    number: int
    span: SpanRow
    messages: int | None
    tools: int | None
    left_out: int
    finish: str

    def get(self, attribute: str) -> Any:
        """Return an attribute of the span, or `None`."""
        return self.span.attributes.get(attribute)


def run_page(request: Request) -> Response:
    """Show a run."""
    reader = reader_of(request)
    run = run_of(request, request.path_params["run_id"])
    if run.run_id != request.path_params["run_id"]:
        return RedirectResponse(f"/runs/{run.run_id}/")
    spans, trace = reader.spans(run.run_id), reader.trace(run.trace_id)
    content = RunContent(reader, spans)
    root = next((span for span in spans if span.name.startswith(semconv.INVOKE_AGENT)), None)
    previous = reader.runs(agent=run.agent, before=run.start, limit=1)
    faults = [span for span in spans if is_fault(span) and span is not root]
    calls = _model_calls(spans)
    is_foldable, is_open = len(spans) > MOST_OPEN, request.query_params.get("open") == "all"
    values = {
        "run": run,
        "root": root,
        "version": str(root.attributes.get(semconv.AGENT_VERSION, "")) if root else "",
        **_conversation(content, spans, root),
        "configuration": root and content.get(root, semconv.AGENT_CONFIGURATION),
        "faults": faults[:MOST_FAULTS],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "calls": calls[:MOST_CALLS],
        "more_calls": max(0, len(calls) - MOST_CALLS),
        "groups": waterfall(run, spans, nested_runs(reader, run, trace), is_open=is_open or not is_foldable),
        "is_open": is_open,
        "is_foldable": is_foldable,
        "ticks": ticks(run, spans),
        "times": _times(spans),
        "number": len(spans),
        "budgets": _budgets(root),
        "previous": previous[0] if previous else None,
        "related": _related(run, trace)[:MOST_RELATED],
        "events": [(event, content.whole(event.payload)) for event in reader.events(run.run_id)[:MOST_EVENTS]],
        "is_live": run.status == RUNNING,
    }
    return render(request, "run.html", values)


def _conversation(content: RunContent, spans: Sequence[SpanRow], root: SpanRow | None) -> dict[str, Any]:
    """Return what the last model call got, and the last answer; without recorded requests, what the run got."""
    asked = root and content.get(root, semconv.INPUT_MESSAGES)
    answer = root and content.get(root, semconv.OUTPUT_MESSAGES)
    calls = [span for span in spans if span.phase == semconv.INFERENCE]
    sent = content.request(calls[-1]) if calls else None
    messages = sent.messages if sent is not None and sent.is_recorded else []
    if messages:
        answer = content.get(calls[-1], semconv.OUTPUT_MESSAGES) or answer
    return {
        "messages": messages[-MOST_MESSAGES:],
        "more_messages": max(0, len(messages) - MOST_MESSAGES),
        "names": tool_names([message.message for message in messages]),
        "asked": asked if not messages else None,
        "answer": answer,
    }


def _related(run: RunRow, rows: Sequence[RunRow]) -> list[tuple[str, RunRow]]:
    """Return the other runs of the same trace, each with what it is to this one."""
    related: list[tuple[str, RunRow]] = []
    for row in rows:
        if row.run_id == run.parent_run_id:
            related.append(("outer run", row))
        elif row.parent_run_id == run.run_id:
            related.append(("nested run", row))
        elif row.run_id != run.run_id:
            related.append(("earlier" if row.start < run.start else "later", row))
    return related


def _budgets(root: SpanRow | None) -> list[tuple[str, float]]:
    """Return the budgets that a run shared with others, and the share of each that was spent when it ended."""
    found = root.attributes if root is not None else {}
    names, used = found.get(BUDGET_NAMES) or (), found.get(BUDGET_USED) or ()
    return [(str(name), float(share)) for name, share in zip(names, used, strict=False)]


def _times(spans: Sequence[SpanRow]) -> dict[str, int]:
    """Return the nanoseconds in spans of each phase; what runs at the same time counts twice."""
    times, now = dict.fromkeys(PHASES, 0), time.time_ns()
    for span in spans:
        if span.phase in times:
            times[span.phase] += end_of(span, now) - span.start
    return times


def _model_calls(spans: Sequence[SpanRow]) -> list[ModelCall]:
    composed: dict[int | None, SpanRow] = {}
    calls: list[ModelCall] = []
    for span in spans:
        if span.phase == semconv.COMPOSE:
            composed[span.iteration] = span
        elif span.phase == semconv.INFERENCE:
            attributes = composed[span.iteration].attributes if span.iteration in composed else {}
            reasons = span.attributes.get(semconv.RESPONSE_FINISH_REASONS)
            finish = ", ".join(map(str, reasons)) if isinstance(reasons, list) else ""
            messages, tools = attributes.get(semconv.COMPOSE_MESSAGES), attributes.get(semconv.COMPOSE_TOOLS)
            left_out = attributes.get(semconv.COMPOSE_LEFT_OUT, 0)
            calls.append(ModelCall(len(calls) + 1, span, messages, tools, left_out, finish or span.status))
    return calls
