"""The page of a run: what was asked and answered, where the time went, and each span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import RUNNING, RunRow, SpanRow, text_of
from pellucid_exporters.viewer.feedback.parts import feedback_of, form_token
from pellucid_exporters.viewer.pages import content_of, reader_of, render, run_of
from pellucid_exporters.viewer.run.content import Contents
from pellucid_exporters.viewer.run.elsewhere import in_grafana
from pellucid_exporters.viewer.run.formats import LINES, answer, format_of, run_json, run_markdown
from pellucid_exporters.viewer.run.gaps import KINDS, path_of, waits
from pellucid_exporters.viewer.run.log_lines import shown_window
from pellucid_exporters.viewer.run.overview import overview
from pellucid_exporters.viewer.run.room import Room
from pellucid_exporters.viewer.run.scale import Scale
from pellucid_exporters.viewer.run.span import PANEL, span_values, tool_names
from pellucid_exporters.viewer.run.state import SIDES, State
from pellucid_exporters.viewer.run.summary import LONGEST, budgets, conversation, model_calls, related
from pellucid_exporters.viewer.run.tree import RunTree, is_fault, run_tree
from pellucid_exporters.viewer.run.waterfall import Waterfall

REPLAY: Final = """\
from pellucid_replay import Tape, replay_sync

tape = Tape.load({store!r}, {run_id!r})
replayed = replay_sync(None, tape)  # or your agent instead of None
print(replayed.outcome, replayed.divergence)
"""
"""Program that replays a run."""

MOST_FAULTS: Final = 5
MOST_MESSAGES: Final = 20
MOST_CALLS: Final = 40
MOST_EVENTS: Final = 60
MOST_LINES: Final = 100
MOST_RELATED: Final = 20
MOST_SCORES: Final = 50


def run_page(request: Request) -> Response:
    """Show a run."""
    reader = reader_of(request)
    run = run_of(request, request.path_params["run_id"])
    if run.run_id != request.path_params["run_id"]:
        return RedirectResponse(f"/runs/{run.run_id}/")
    spans, trace = reader.spans(run.run_id), reader.trace(run.trace_id)
    state, tree = State.of(request.query_params), run_tree(reader, run, spans, trace)
    content = content_of(request, spans)
    talk = conversation(content, spans, tree.root)
    path, name = path_of(tree), format_of(request)
    if name:
        log = reader.log_lines(run.run_id, limit=LINES)
        if name == "json":
            return answer(name, run_json(tree, path, content, log))
        return answer(name, run_markdown(tree, path, talk.messages, talk.question, talk.answer, log))
    previous = reader.runs(agent=run.agent, before=run.start, limit=1)
    failed = (span for span in tree.order if is_fault(span) and span is not tree.root)
    faults = [(span, tree.address(span)) for span in sorted(failed, key=lambda span: span.start)]
    scale = Scale(tree, state)
    values: dict[str, Any] = {
        "run": run,
        "root": tree.root,
        "state": state,
        "version": str(tree.root.attributes.get(semconv.AGENT_VERSION, "")) if tree.root else "",
        "resumed": text_of(tree.root.attributes, semconv.RESUMED_FROM) if tree.root else None,
        "approved": max((waits(span)[0] for span in spans), default=0),
        "question": talk.question,
        "answer": talk.answer,
        "LONGEST": LONGEST,
        "faults": faults[:MOST_FAULTS],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "overview": overview(tree, state, scale, path),
        "critical": path,
        "KINDS": KINDS,
        "ticks": scale.ticks(),
        "window": Waterfall(tree, state, scale, path).window(),
        "number": len(spans),
        "budgets": budgets(tree.root),
        "previous": previous[0] if previous else None,
        "related": related(run, trace)[:MOST_RELATED],
        "sides": SIDES,
        "is_live": run.status == RUNNING,
        "replay": REPLAY.format(store=request.app.state.label.partition(", ")[0] or "telemetry.db", run_id=run.run_id),
        "lines": reader.log_line_counts(run.run_id),
        **_scores(request, run, spans, tree),
        "in_grafana": in_grafana(request, run),
        "panel": _panel(request, tree, content, trace, state),
    }
    room = Room(elements=1_000, characters=250_000, longest=4_000, largest=60)
    last = min(state.last or len(talk.messages), len(talk.messages))
    nearby = talk.messages[max(0, last - 2 * MOST_MESSAGES) : last]  # a result follows its call
    names = tool_names([item.message for item in nearby])
    contents = Contents(f"/runs/{run.run_id}/", room, names, has_images=request.app.state.images)
    if values["panel"] is None:
        values |= _side(request, state, spans, content, contents, talk.messages, tree.root)
    return render(request, "run.html", values)


def _side(
    request: Request,
    state: State,
    spans: Sequence[SpanRow],
    content: RunContent,
    contents: Contents,
    messages: Sequence[Any],
    root: SpanRow | None,
) -> dict[str, Any]:
    """Return what is beside the waterfall: a window of the conversation, the model calls, the events or the log."""
    if state.side == "configuration":
        recorded = content.get(root, semconv.AGENT_CONFIGURATION) if root is not None else None
        return {"configuration": contents.recorded(recorded) if recorded is not None else None}
    if state.side == "calls":
        calls = model_calls(spans)
        most = max((call.tokens(semconv.USAGE_INPUT_TOKENS) for call in calls), default=0)
        dearest = max((call.get(semconv.COST_USD) or 0 for call in calls if _is_cost(call)), default=0)
        return {**_window(state, calls, MOST_CALLS), "most": most, "dearest": dearest}
    if state.side == "events":
        events = reader_of(request).events(spans[0].run_id) if spans else []
        shown = _window(state, events, MOST_EVENTS)
        shown["items"] = [(event, contents.value(content.whole(event.payload))) for event in shown["items"]]
        return shown
    if state.side == "logs" and spans:
        run_id = spans[0].run_id
        window = reader_of(request).log_lines(run_id, last=state.last, limit=MOST_LINES)
        logs = shown_window(window, contents, lambda number: state.address(last=number), MOST_LINES)
        return {"logs": logs, "names": {span.span_id: span.name for span in spans}}
    shown = _window(state, messages, MOST_MESSAGES)
    shown["items"] = contents.shared(shown["items"])
    return shown


def _scores(request: Request, run: RunRow, spans: Sequence[SpanRow], tree: RunTree) -> dict[str, Any]:
    """Return the scores of a run, the newest first, with the spans that they are of, and what a reader may do."""
    scores = reader_of(request).scores(run.run_id)[::-1]
    places = {span.span_id: span for span in spans if span is not tree.root}
    shown = [(score, places.get(score.span_id or "")) for score in scores[:MOST_SCORES]]
    feedback = feedback_of(request)
    return {
        "scores": [(score, span, tree.address(span) if span is not None else "") for score, span in shown],
        "more_scores": max(0, len(scores) - MOST_SCORES),
        "csrf": form_token(request),
        "can_sign_in": feedback is not None,
        "set": feedback.cases if feedback is not None and feedback.add is not None else "",
        "added": request.query_params.get("added"),
    }


def _is_cost(call: Any) -> bool:
    return isinstance(call.get(semconv.COST_USD), int | float)


def _window(state: State, items: Sequence[Any], most: int) -> dict[str, Any]:
    """Return a window of items, the last ones first, with the addresses of its neighbours."""
    last = min(state.last or len(items), len(items))
    first = max(0, last - most)
    return {
        "items": list(items[first:last]),
        "first": first + 1,
        "last": last,
        "total": len(items),
        "before": state.address(last=first) if first else "",
        "after": state.address(last=min(last + most, len(items))) if last < len(items) else "",
    }


def _panel(
    request: Request, tree: RunTree, content: RunContent, trace: Sequence[RunRow], state: State
) -> dict[str, Any] | None:
    """Return the values of the selected span; `None` if there is none."""
    span = tree.find(state.span)
    if span is None:
        return None
    run = tree.nested.get(span.run_id, tree.run)
    if run is not tree.run:
        spans = sorted((each for each in tree.order if each.run_id == run.run_id), key=lambda each: each.sequence)
        content = content_of(request, spans)
    place = tree.order.index(span)
    neighbours = {
        name: state.address(span=tree.key(tree.order[other])) if 0 <= other < len(tree.order) else ""
        for name, other in (("earlier", place - 1), ("later", place + 1))
    }
    values = span_values(request, run, content, span, trace, PANEL)
    return {**values, **neighbours}
