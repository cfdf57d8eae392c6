"""The page of a run: what went wrong, its model calls, and the waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import RUNNING, RunRow, SpanRow
from pellucid_exporters.viewer.pages import reader_of, render, run_of
from pellucid_exporters.viewer.waterfall import MOST_OPEN, is_fault, ticks, waterfall

PHASES: Final = (semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH)
MOST_FAULTS: Final = 20
MOST_CALLS: Final = 100
MOST_EVENTS: Final = 200
MOST_RELATED: Final = 50


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call as the page lists it; the span's attributes have the rest."""

    number: int
    span: SpanRow
    messages: int | None
    tools: int | None
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
    spans = reader.spans(run.run_id)
    content = RunContent(reader, spans)
    root = next((span for span in spans if span.name.startswith(semconv.INVOKE_AGENT)), None)
    previous = reader.runs(agent=run.agent, before=run.start, limit=1)
    faults = [span for span in spans if is_fault(span) and span is not root]
    calls = _model_calls(spans)
    is_foldable, is_open = len(spans) > MOST_OPEN, request.query_params.get("open") == "all"
    values = {
        "run": run,
        "root": root,
        "root_input": root and content.get(root, semconv.INPUT_MESSAGES),
        "root_output": root and content.get(root, semconv.OUTPUT_MESSAGES),
        "configuration": root and content.get(root, semconv.AGENT_CONFIGURATION),
        "faults": faults[:MOST_FAULTS],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "calls": calls[:MOST_CALLS],
        "more_calls": max(0, len(calls) - MOST_CALLS),
        "groups": waterfall(run, spans, is_open=is_open or not is_foldable),
        "is_open": is_open,
        "is_foldable": is_foldable,
        "ticks": ticks(run, spans),
        "times": _times(spans),
        "number": len(spans),
        "previous": previous[0] if previous else None,
        "related": _related(run, reader.trace(run.trace_id))[:MOST_RELATED],
        "events": [(event, content.whole(event.payload)) for event in reader.events(run.run_id)[:MOST_EVENTS]],
        "is_live": run.status == RUNNING,
    }
    return render(request, "run.html", values)


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


def _times(spans: Sequence[SpanRow]) -> dict[str, int]:
    """Return the nanoseconds in spans of each phase; what runs at the same time counts twice."""
    times = dict.fromkeys(PHASES, 0)
    for span in spans:
        if span.phase in times and span.end is not None:
            times[span.phase] += span.end - span.start
    return times


def _model_calls(spans: Sequence[SpanRow]) -> list[ModelCall]:
    composed: dict[int | None, SpanRow] = {}
    calls: list[ModelCall] = []
    for span in spans:
        if span.phase == semconv.COMPOSE:
            composed[span.iteration] = span
        elif span.phase == semconv.INFERENCE:
            attributes = composed[span.iteration].attributes if span.iteration in composed else {}
            reasons = span.attributes.get(semconv.RESPONSE_FINISH_REASONS) or ()
            finish = ", ".join(reasons) or span.status
            messages, tools = attributes.get(semconv.COMPOSE_MESSAGES), attributes.get(semconv.COMPOSE_TOOLS)
            calls.append(ModelCall(len(calls) + 1, span, messages, tools, finish))
    return calls
