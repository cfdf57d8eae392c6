"""In-memory telemetry, with deterministic ids and a deterministic clock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import anyio.to_thread
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import format_span_id, format_trace_id

from pellucid import semconv
from pellucid.semconv import Metric
from pellucid.telemetry.pipeline import capturing
from pellucid_exporters.recorder.names import resolve_recorder
from pellucid_exporters.recorder.providers import make_meter_provider, make_tracer_provider
from pellucid_exporters.testing.captured_span import CapturedSpan

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics import Exemplar as SdkExemplar

    from pellucid.events import Event
    from pellucid.telemetry.capture import CapturePolicy
    from pellucid.telemetry.pipeline import Listener, LogSink
    from pellucid_exporters.recorder.names import Recorder

FIRST_READING: Final = 1_735_689_600_000_000_000
"""First reading of the fixed clock: 2025-01-01T00:00:00Z, in nanoseconds."""

TICK: Final = 1_000_000
"""Nanoseconds between two readings of the fixed clock: a millisecond."""

Tree: TypeAlias = tuple[str, list["Tree"]]
"""Name of a span, and its children in start order."""

Which: TypeAlias = str | Callable[[CapturedSpan], bool]
"""Prefix of a span name, or a predicate."""


def capture(*, capture: CapturePolicy | None = None, fixed: bool = True, recorder: Recorder | None = None) -> Captured:
    """Create a pipeline that captures telemetry in memory.

    Within its `with` block, agents without `telemetry=` use it, also after a `configure()` in the block. Elsewhere,
    pass it as `telemetry=`. Blocks hold for all threads and tasks: of several that are open, the one entered last
    captures, whichever ends first.

    Args:
        capture: Capture policy for the content of runs; `None` reads the environment.
        fixed: Count trace and span ids up from 1, and advance the clock of runs by a millisecond per reading, so that
            the same run produces the same telemetry. Timeouts and deadlines still use the real clock. Durations are
            then those of the clock: a slow hub is within its objective. For tests of latency pass False.
        recorder: As for `configure`.
    """
    return Captured(capture=capture, fixed=fixed, recorder=resolve_recorder(recorder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One measurement of a point, with the ids of its trace and span (hexadecimal)."""

    value: float
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Data point: one metric with one set of attributes.

    Attributes:
        value: Value of a counter or gauge; sum of a histogram's measurements.
        count: Number of a histogram's measurements; `None` for other instruments.
        bounds: Upper bounds of a histogram's buckets, inclusive.
        buckets: Measurements in each bucket; one more than there are bounds.
        exemplars: Exemplars in the order of collection.
    """

    name: str
    unit: str
    attributes: Mapping[str, Any]
    value: float
    count: int | None = None
    bounds: tuple[float, ...] = ()
    buckets: tuple[int, ...] = ()
    exemplars: tuple[Exemplar, ...] = ()


class Captured:
    """Pipeline that captures telemetry in memory, created by `capture()`.

    Attributes:
        tracer_provider, meter_provider, log_sinks, capture, listeners, clock: Used by runs.
        started: Spans in start order, ended or not.
        spans: Ended spans, in end order.
        logs: Log lines, as log sinks receive them.
        events: Events of all runs.
        is_checked: Whether the fixture `telemetry` calls `check_telemetry` after its test; set it to False in a
            test that breaks telemetry on purpose, or leaves a run open.
    """

    def __init__(self, *, capture: CapturePolicy | None, fixed: bool, recorder: Recorder | None) -> None:
        self.capture = capture
        self.spans: list[CapturedSpan] = []
        self.logs: list[Mapping[str, Any]] = []
        self.events: list[Event] = []
        self.clock: Callable[[], int] | None = itertools.count(FIRST_READING, TICK).__next__ if fixed else None
        self.log_sinks: tuple[LogSink, ...] = (self._log,)
        self.listeners: tuple[tuple[str, Listener], ...] = (("*", self.events.append),)
        self.is_checked = True
        self.started: list[Span] = []
        # Resources and samplers of the environment must not affect tests.
        self.tracer_provider = make_tracer_provider(
            recorder,
            sampler=ALWAYS_ON,
            resource=Resource({}),
            shutdown_on_exit=False,
            id_generator=_CountedIds() if fixed else RandomIdGenerator(),
        )
        self._ended = threading.Condition()
        self._logged: set[str] = set()
        self.tracer_provider.add_span_processor(_Keeper(self.started, self.spans, self._ended))
        self._reader = InMemoryMetricReader()
        self.meter_provider = make_meter_provider(
            recorder, [self._reader], resource=Resource({}), shutdown_on_exit=False
        )
        self._exemplars: dict[tuple[str, frozenset[tuple[str, Any]]], dict[Exemplar, None]] = {}
        self._block = capturing(self)

    def __enter__(self) -> Self:
        self._block.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._block.__exit__(kind, error, tb)

    @property
    def unended(self) -> list[str]:
        """Names of spans that were started and have not ended."""
        ended = {_id(span) for span in self.spans}
        return [span.name for span in self.started if _id(span) not in ended]

    async def settle(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109  (that of `settle_sync`, in a thread)
        """Wait until all spans have ended and are measured, those of round trips that outlast their runs too.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: a span has not ended; the message names it.
        """
        await anyio.to_thread.run_sync(self.settle_sync, timeout)

    def settle_sync(self, timeout: float = 10.0) -> None:
        """Wait as `settle` does, for agents that run in another thread, such as those of `run_sync`."""
        with self._ended:
            if not self._ended.wait_for(self._is_settled, timeout):
                raise TimeoutError(f"spans have not ended within {timeout:g} s: {self.unended}")

    def _is_settled(self) -> bool:
        """Return whether all spans have ended, and those of boundaries have their log line, which comes last."""
        ours = (span for span in self.spans if semconv.OUTCOME in span.attributes)
        return not self.unended and all(format_span_id(_id(span)) in self._logged for span in ours)

    def _log(self, line: Mapping[str, Any]) -> None:
        with self._ended:
            self.logs.append(line)
            self._logged.add(str(line.get("span_id")))
            self._ended.notify_all()

    def find(self, which: Which) -> list[CapturedSpan]:
        """Return the ended spans that match, in end order."""
        return [span for span in self.spans if (span.name.startswith(which) if isinstance(which, str) else which(span))]

    def span(self, which: Which) -> CapturedSpan:
        """Return the one ended span that matches.

        Raises:
            LookupError: no span matches, or several do.
        """
        spans = self.find(which)
        if len(spans) != 1:
            raise LookupError(
                f"{len(spans)} spans match {which!r}; those that ended: {[span.name for span in self.spans]}"
            )
        return spans[0]

    def tree(self) -> list[Tree]:
        """Return the ended spans as trees of names, one for each span whose parent is not among them."""
        ended = {_id(span) for span in self.spans}
        nodes: dict[int, Tree] = {}
        roots: list[Tree] = []
        for span in self.started:
            if _id(span) not in ended:
                continue
            node = nodes[_id(span)] = (span.name, [])
            parent = nodes.get(span.parent.span_id) if span.parent is not None else None
            (parent[1] if parent is not None else roots).append(node)
        return roots

    @property
    def metrics(self) -> list[Point]:
        """Current points of all metrics. Exemplars accumulate: reading does not consume them."""
        data = self._reader.get_metrics_data()
        points = []
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points += [self._point(metric.name, metric.unit or "", point) for point in metric.data.data_points]
        return points

    def histogram(self, metric: str | Metric, /, **attributes: Any) -> Point:
        """Return the one histogram point that has these attributes, among others.

        Dots of attribute names may be written as underscores: `pellucid_provider_id="rube"`. With `None`, a point must
        not have the attribute.

        Raises:
            LookupError: no point matches, or several do.
        """
        return self._one(metric, attributes, lambda point: point.count is not None)

    def value(self, metric: str | Metric, /, **attributes: Any) -> float:
        """Return the value of the one counter or gauge with these attributes, which are passed as for `histogram`.

        Raises:
            LookupError: no point matches, or several do.
        """
        return self._one(metric, attributes, lambda point: point.count is None).value

    def _one(self, metric: str | Metric, attributes: Mapping[str, Any], fits: Callable[[Point], bool]) -> Point:
        name = metric if isinstance(metric, str) else metric.name
        points = [point for point in self.metrics if point.name == name and fits(point)]
        matches = [point for point in points if _matches(point, attributes)]
        if len(matches) != 1:
            present = [dict(point.attributes) for point in points]
            raise LookupError(f"{len(matches)} points of {name!r} have {attributes}; those that there are: {present}")
        return matches[0]

    def _point(self, name: str, unit: str, point: Any) -> Point:
        attributes = dict(point.attributes or {})
        assert isinstance(point, HistogramDataPoint | NumberDataPoint)  # no view configures exponential histograms here
        common: dict[str, Any] = {"name": name, "unit": unit, "attributes": attributes}
        # The SDK returns each exemplar once; a test may read it twice.
        kept = self._exemplars.setdefault((name, frozenset(attributes.items())), {})
        kept.update(dict.fromkeys(_exemplars(point.exemplars)))
        if isinstance(point, NumberDataPoint):
            return Point(**common, value=point.value, exemplars=tuple(kept))
        return Point(
            **common,
            value=point.sum,
            count=point.count,
            bounds=tuple(point.explicit_bounds),
            buckets=tuple(point.bucket_counts),
            exemplars=tuple(kept),
        )


class _CountedIds(IdGenerator):
    """Generator of ids that count up from 1. Thread-safe."""

    def __init__(self) -> None:
        self._spans = itertools.count(1)
        self._traces = itertools.count(1)

    def generate_span_id(self) -> int:
        return next(self._spans)

    def generate_trace_id(self) -> int:
        return next(self._traces)


class _Keeper(SpanProcessor):
    """Span processor that keeps started and ended spans, and notifies those that wait for an end."""

    def __init__(self, started: list[Span], ended: list[CapturedSpan], condition: threading.Condition) -> None:
        self.started = started
        self._ended = ended
        self._condition = condition

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        with self._condition:
            self._ended.append(CapturedSpan.of(span))
            self._condition.notify_all()


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def _exemplars(given: Any) -> Iterator[Exemplar]:
    exemplars: list[SdkExemplar] = given
    for exemplar in exemplars:
        yield Exemplar(
            value=exemplar.value,
            trace_id=format_trace_id(exemplar.trace_id or 0),
            span_id=format_span_id(exemplar.span_id or 0),
        )


def _matches(point: Point, attributes: Mapping[str, Any]) -> bool:
    present = {_underscored(name): value for name, value in point.attributes.items()}
    return all(present.get(_underscored(name)) == value for name, value in attributes.items())


def _underscored(name: str) -> str:
    return name.replace(".", "_")
