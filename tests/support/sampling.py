"""A pipeline with a tail sampler before a real collector, and runs made by hand where thousands are needed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from pellucid import semconv
from pellucid_exporters.options import Otlp, Prometheus, Settings
from pellucid_exporters.pipeline import build
from support.openmetrics import exemplars, fetch, scrape, values
from support.otlp_receiver import Receiver, otlp_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context

    from pellucid_exporters.sampling.rules import TailSampling
    from pellucid_exporters.telemetry import Telemetry


@dataclass(frozen=True)
class Sampled:
    """Telemetry that passed a tail sampler."""

    telemetry: Telemetry
    receiver: Receiver

    @property
    def names(self) -> list[str]:
        """Names of the spans that have arrived so far."""
        assert self.telemetry.flush(10)
        return sorted(span.name for span in self.receiver.spans)

    @property
    def traces(self) -> set[str]:
        """Traces of which spans have arrived so far, in hexadecimal."""
        assert self.telemetry.flush(10)
        return {span.trace_id.hex() for span in self.receiver.spans}

    @property
    def sampled_out(self) -> float:
        """Number of spans that were counted as sampled out."""
        return sum(self._counts("pellucid_telemetry_sampled_out").values())

    @property
    def decisions(self) -> dict[tuple[str, bool], int]:
        """Number of runs that were decided, by reason and whether the decision was early."""
        return {
            (dict(labels)["pellucid_sampling_reason"], dict(labels)["pellucid_sampling_early"] == "true"): int(value)
            for (_, labels), value in self._counts("pellucid_telemetry_sampling_decisions").items()
        }

    @property
    def prometheus_exemplars(self) -> set[str]:
        """Traces that exemplars in `/metrics` lead to."""
        families = scrape(self.telemetry.prometheus_url).values()
        return {shown.labels["trace_id"] for family in families for shown in exemplars(family).values()}

    @property
    def otlp_exemplars(self) -> set[str]:
        """Traces that exemplars in exported metrics lead to."""
        assert self.telemetry.flush(10)
        return {
            exemplar.trace_id.hex()
            for metric in self.receiver.metrics
            for point in getattr(metric, metric.WhichOneof("data")).data_points
            for exemplar in point.exemplars
        }

    def count(self, name: str) -> float:
        """Return the sum of all series of a counter."""
        return sum(self._counts(name).values())

    def metrics_text(self) -> str:
        """Return `/metrics` as plain text."""
        return fetch(self.telemetry.prometheus_url, "text/plain")[1]

    def _counts(self, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        family = scrape(self.telemetry.prometheus_url).get(name)
        return {} if family is None else values(family)


@contextmanager
def sampled(options: TailSampling | None) -> Iterator[Sampled]:
    """Build a pipeline with a collector and `/metrics`."""
    with otlp_receiver("http/protobuf") as receiver:
        settings = Settings(
            service_name="shop",
            otlp=Otlp(endpoint=receiver.endpoint),
            prometheus=Prometheus(port=0),
            tail_sampling=options,
        )
        telemetry = build(settings)
        try:
            yield Sampled(telemetry, receiver)
        finally:
            telemetry.shutdown()
        assert receiver.faults == []


def in_trace(trace_id: int) -> Context:
    """Return the context of a caller in another process."""
    caller = SpanContext(trace_id, 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return trace.set_span_in_context(NonRecordingSpan(caller))


def start_run(tracer: trace.Tracer, name: str = "run", context: Context | None = None, **more: Any) -> trace.Span:
    """Start the span of a run, as the runtime does."""
    return tracer.start_span(name, context=context, attributes={semconv.PHASE: semconv.RUN}, **more)


def emit_run(tracer: trace.Tracer, *phases: str, context: Context | None = None, outcome: str = "completed") -> int:
    """Emit the spans of a run with some children; return its trace id."""
    run = start_run(tracer, context=context)
    inside = trace.set_span_in_context(run)
    for phase in phases:
        tracer.start_span(phase, context=inside, attributes={semconv.PHASE: phase}).end()
    run.set_attribute(semconv.OUTCOME, outcome)
    run.end()
    return run.get_span_context().trace_id
