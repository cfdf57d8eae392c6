"""A reader of captured telemetry, for the pages of the viewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from pellucid import semconv
from pellucid_exporters.stored.quantiles import quantile, summed
from pellucid_exporters.stored.rows import BODY, RUNNING, CallRow, EventRow, HubRow, RunRow, SpanRow
from pellucid_exporters.testing import Captured

LONG = 2_000
"""Characters from which a text is a body."""

MINUTE = 60_000_000_000


class SampleReader:
    """Reader of the runs of one `Captured`.

    Attributes:
        span_rows: The spans by run; tests may add some.
        version: What `changes` returns.
    """

    def __init__(self, captured: Captured, objectives: dict[str, float] | None = None) -> None:
        self.span_rows: dict[str, list[SpanRow]] = {}
        self.version = 1
        self._captured = captured
        self._objectives = objectives or {}
        self._bodies: dict[str, str] = {}
        for span in captured.started:
            run_id = str((span.attributes or {})[semconv.RUN_ID])
            rows = self.span_rows.setdefault(run_id, [])
            rows.append(self._span_row(run_id, len(rows), span))

    def runs(
        self,
        *,
        agent: str | None = None,
        outcome: str | None = None,
        hub: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        text: str | None = None,
        min_duration: float | None = None,
        min_cost: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return the runs that match, newest first."""
        rows = sorted(map(self._run_row, self.span_rows), key=lambda row: row.start, reverse=True)
        found = [
            row
            for row in rows
            if agent in {None, row.agent}
            and outcome in {None, row.status}
            and (hub is None or hub in row.hubs)
            and (tool is None or tool in row.tools)
            and (model is None or model in row.models)
            and (text is None or any(text in str(span.attributes) for span in self.span_rows[row.run_id]))
            and (min_duration is None or ((row.end or row.start) - row.start) / 1e9 >= min_duration)
            and (min_cost is None or (row.cost or 0) >= min_cost)
            and (before is None or row.start < before)
        ]
        return found[:limit]

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id or a prefix of it."""
        found = [known for known in self.span_rows if known.startswith(run_id)]
        return self._run_row(found[0]) if len(found) == 1 else None

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace in start order."""
        return [run for run in reversed(self.runs(limit=1_000)) if run.trace_id == trace_id]

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run."""
        return self.span_rows[run_id]

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return large texts."""
        return {digest: self._bodies[digest] for digest in digests if digest in self._bodies}

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return nothing: `capture()` keeps no catalogues."""
        return {}

    def events(self, run_id: str) -> list[EventRow]:
        """Return the events of a run."""
        return [
            EventRow(run_id=run_id, time=int(event.time * 1e9), name=event.name, span_id=event.span_id)
            for event in self._captured.events
            if event.run_id == run_id
        ]

    def events_named(self, name: str, since: int, until: int) -> list[EventRow]:
        """Return the events of all runs with a name."""
        return [event for run_id in self.span_rows for event in self.events(run_id) if event.name == name]

    def hubs(self, since: int, until: int) -> list[HubRow]:
        """Return the hubs."""
        spans = [span for rows in self.span_rows.values() for span in rows if span.phase == semconv.DISCOVERY]
        names = sorted({span.attributes[semconv.PROVIDER_ID] for span in spans})
        return [
            self._hub_row(name, [span for span in spans if span.attributes[semconv.PROVIDER_ID] == name])
            for name in names
        ]

    def calls(self, since: int, until: int, phases: Collection[str]) -> list[CallRow]:
        """Return nothing: alerts are tried on real stores."""
        return []

    def in_flight(self) -> list[SpanRow]:
        """Return the spans that have not ended."""
        return [span for rows in self.span_rows.values() for span in rows if span.status == RUNNING]

    def changes(self) -> int:
        """Return the version."""
        return self.version

    def _hub_row(self, name: str, spans: list[SpanRow]) -> HubRow:
        bounds = semconv.DISCOVERY_DURATION.buckets
        assert bounds is not None
        by_minute: dict[int, list[int]] = {}
        exemplars: dict[int, tuple[str, str]] = {}
        ended = [span for span in spans if span.end is not None]
        for span in ended:
            assert span.end is not None
            took = (span.end - span.start) / 1e9
            index = next((place for place, bound in enumerate(bounds) if took <= bound), len(bounds))
            by_minute.setdefault(span.end - span.end % MINUTE, [0] * (len(bounds) + 1))[index] += 1
            exemplars[index] = (span.run_id, span.span_id)
        totals = summed(list(by_minute.values()), len(bounds) + 1)
        return HubRow(
            provider_id=name,
            objective=self._objectives.get(name),
            calls=len(ended),
            failures=sum(span.status in {"failed", "timeout"} for span in ended),
            by_minute=by_minute,
            bounds=bounds,
            exemplars=exemplars,
            p50=quantile(0.5, bounds, totals),
            p95=quantile(0.95, bounds, totals),
            p99=quantile(0.99, bounds, totals),
            cache=Counter(str(span.attributes.get(semconv.DISCOVERY_CACHE)) for span in ended),
        )

    def _run_row(self, run_id: str) -> RunRow:
        spans = self.span_rows[run_id]
        root = next(span for span in spans if span.phase == semconv.RUN)
        names = {
            key: tuple(sorted({str(span.attributes[key]) for span in spans if key in span.attributes}))
            for key in (semconv.REQUEST_MODEL, semconv.TOOL_NAME, semconv.PROVIDER_ID)
        }
        return RunRow(
            run_id=run_id,
            trace_id=root.trace_id,
            agent=str(root.attributes[semconv.AGENT_NAME]),
            service="sample",
            status=root.status,
            start=root.start,
            end=root.end,
            iterations=max((span.iteration or 0 for span in spans), default=0),
            error_type=root.error_type,
            error=root.error,
            input_tokens=root.attributes.get(semconv.USAGE_INPUT_TOKENS),
            output_tokens=root.attributes.get(semconv.USAGE_OUTPUT_TOKENS),
            cost=root.attributes.get(semconv.COST_USD),
            models=names[semconv.REQUEST_MODEL],
            tools=names[semconv.TOOL_NAME],
            hubs=names[semconv.PROVIDER_ID],
            spans=len(spans),
        )

    def _span_row(self, run_id: str, sequence: int, span: ReadableSpan) -> SpanRow:
        attributes: dict[str, Any] = dict(span.attributes or {})
        for name, value in attributes.items():
            if isinstance(value, str) and len(value) > LONG:
                digest = f"{hash(value):x}"
                self._bodies[digest] = value
                attributes[name] = {BODY: digest}
        context = span.get_span_context()
        assert context is not None
        fallback = "error" if span.status.status_code is StatusCode.ERROR else "ok"
        return SpanRow(
            run_id=run_id,
            sequence=sequence,
            trace_id=format_trace_id(context.trace_id),
            span_id=format_span_id(context.span_id),
            parent_span_id=format_span_id(span.parent.span_id) if span.parent else None,
            name=span.name,
            phase=attributes.get(semconv.PHASE),
            iteration=attributes.get(semconv.ITERATION),
            start=span.start_time or 0,
            end=span.end_time,
            status=RUNNING if span.end_time is None else attributes.get(semconv.OUTCOME, fallback),
            error_type=attributes.get(semconv.ERROR_TYPE),
            error=span.status.description,
            attributes=attributes,
            events=[
                {"name": event.name, "time": event.timestamp, "attributes": dict(event.attributes or {})}
                for event in span.events
            ],
            links=[
                {"trace_id": format_trace_id(link.context.trace_id), "span_id": format_span_id(link.context.span_id)}
                for link in span.links
            ],
        )
