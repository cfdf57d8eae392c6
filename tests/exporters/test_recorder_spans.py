"""Our recorder's spans beside those of the OpenTelemetry SDK."""

from __future__ import annotations

import copy
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    AlwaysRecordSampler,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from pellucid import semconv
from pellucid_exporters.recorder.span_trial import needs_sdk
from pellucid_exporters.recorder.spans import RecorderSpan, RecorderTracerProvider

NAMES = st.sampled_from(["", "a", "b", "c", "d", "e"])
SCALARS = st.one_of(
    st.text("ab", max_size=6), st.booleans(), st.integers(-3, 3), st.floats(-1, 1), st.binary(max_size=3), st.none()
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.tuples(st.text("ab", max_size=6)),
    st.dictionaries(NAMES, SCALARS, max_size=2),
    st.builds(object),
)
KEYS: st.SearchStrategy[Any] = st.one_of(NAMES, st.integers(0, 1))
ATTRIBUTES = st.none() | st.dictionaries(KEYS, VALUES, max_size=5)
CONTEXTS = st.builds(
    SpanContext,
    st.integers(0, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from([TraceFlags(flags) for flags in range(4)]),
    st.sampled_from([TraceState(), TraceState([("a", "1")])]),
)
TIMES = st.none() | st.integers(1, 10)
STATUSES = st.builds(Status, st.sampled_from(StatusCode)) | st.builds(Status, st.just(StatusCode.ERROR), st.text("ab"))
CALLS = st.one_of(
    st.tuples(st.just("set_attribute"), st.tuples(KEYS, VALUES)),
    st.tuples(st.just("set_attributes"), st.tuples(st.dictionaries(KEYS, VALUES, max_size=5))),
    st.tuples(st.just("add_event"), st.tuples(NAMES, ATTRIBUTES, TIMES)),
    st.tuples(st.just("add_link"), st.tuples(CONTEXTS, ATTRIBUTES)),
    st.tuples(st.just("set_status"), st.tuples(STATUSES)),
    st.tuples(st.just("set_status"), st.tuples(st.sampled_from(StatusCode), st.none() | st.text("ab"))),
    st.tuples(st.just("update_name"), st.tuples(NAMES)),
    st.tuples(st.just("record_exception"), st.tuples(st.builds(ValueError, st.text("ab")), ATTRIBUTES, TIMES)),
    st.tuples(st.just("end"), st.tuples(TIMES)),
)
GIVEN = 100
"""Upper bound of the times that are given."""

COUNTS = st.sampled_from([None, 0, 1, 2, 4])


class Remarking(Sampler):
    """Sampler that adds an attribute and a trace state, and records without sampling."""

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        """Record only."""
        return SamplingResult(Decision.RECORD_ONLY, {"by": "sampler"}, TraceState([("s", "1")]))

    def get_description(self) -> str:
        """Return a name."""
        return "Remarking"


SAMPLERS = [
    DEFAULT_ON,
    ALWAYS_ON,
    ALWAYS_OFF,
    AlwaysRecordSampler(ALWAYS_OFF),
    ParentBasedTraceIdRatio(0.5),
    Remarking(),
]


class Counted(IdGenerator):
    """Generator of the same ids for each provider."""

    def __init__(self, is_random: bool) -> None:
        self._id = 1 << 120
        self._is_random = is_random

    def generate_span_id(self) -> int:
        """Count up."""
        self._id += 1
        return self._id & 0xFFFF

    def generate_trace_id(self) -> int:
        """Count up."""
        self._id += 1
        return self._id

    def is_trace_id_random(self) -> bool:
        """Return what was given."""
        return self._is_random


class Kept(SpanProcessor):
    """Processor that keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Keep what is known at the start, and set an attribute."""
        self.calls.append(("start", content_of(span)))
        span.set_attribute("started", parent_context is not None)

    def _on_ending(self, span: Span) -> None:
        self.calls.append(("ending", span.is_recording()))

    def on_end(self, span: ReadableSpan) -> None:
        """Keep what is exported."""
        self.calls.append(("end", content_of(span)))


def content_of(span: ReadableSpan) -> list[Any]:
    """Return everything that a reader can see, but times that nobody gave, and stack traces."""
    given = [span.start_time, span.end_time, *(event.timestamp for event in span.events)]
    times = [time if time is None or time < GIVEN else "now" for time in given]
    own = [span.name, span.context, span.parent, span.kind, span.status.status_code, span.status.description]
    contexts = [(to.trace_flags, to.trace_state, to.is_remote) for to in (span.context, span.parent) if to is not None]
    dropped = [span.dropped_attributes, span.dropped_events, span.dropped_links]
    events = [(event.name, attributes_of(event), event.dropped_attributes) for event in span.events]
    links = [(link.context, attributes_of(link), link.dropped_attributes) for link in span.links]
    origin = [span.resource, span.instrumentation_scope]
    return [own, times, contexts, attributes_of(span), dropped, events, links, origin]


def attributes_of(item: Any) -> str:
    """Return attributes with their types and order."""
    return repr({key: value for key, value in (item.attributes or {}).items() if key != "exception.stacktrace"})


def recorded(provider_type: type[TracerProvider], options: Mapping[str, Any], act: Callable[..., object]) -> list[Any]:
    """Return what a processor saw, and the warnings that were logged."""
    kept, logged = Kept(), []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.levelname)  # type: ignore[method-assign]
    options = {**options, "id_generator": Counted(options["id_generator"])}
    provider = provider_type(resource=Resource({"service.name": "x"}), shutdown_on_exit=False, **options)
    provider.add_span_processor(kept)
    logger = logging.getLogger("opentelemetry")
    ours = logging.getLogger("pellucid_exporters")
    for each in (logger, ours):
        each.addHandler(handler)
    try:
        act(provider.get_tracer(semconv.SCOPE, "1", "https://x/1", {"k": 1}))
    finally:
        for each in (logger, ours):
            each.removeHandler(handler)
    return [*kept.calls, logged]


@settings(max_examples=200, deadline=None, database=None, derandomize="CI" in os.environ)
@given(data=st.data())
def test_spans_are_recorded_as_by_the_sdk(data: st.DataObject) -> None:
    """Whatever is done to them, in any order, also after their end, with any limits, parents, ids and samplers."""
    limits = SpanLimits(
        max_span_attributes=data.draw(COUNTS),
        max_events=data.draw(COUNTS),
        max_links=data.draw(COUNTS),
        max_event_attributes=data.draw(COUNTS),
        max_span_attribute_length=data.draw(COUNTS),
    )
    options = {
        "span_limits": limits,
        "sampler": data.draw(st.sampled_from(SAMPLERS)),
        "id_generator": data.draw(st.booleans()),
    }
    parent, kind, start = data.draw(st.none() | CONTEXTS), data.draw(st.sampled_from(SpanKind)), data.draw(TIMES)
    attributes = data.draw(ATTRIBUTES)
    links = data.draw(st.lists(st.tuples(CONTEXTS, ATTRIBUTES), max_size=3))
    calls = [*data.draw(st.lists(CALLS, max_size=8)), ("end", (7,))]

    def act(tracer: trace.Tracer) -> None:
        context = trace.set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None
        made = [Link(to, about) for to, about in links]
        span = tracer.start_span("s", context, kind, attributes, made, start)
        for name, arguments in calls:
            getattr(span, name)(*arguments)
        child = tracer.start_span("child", trace.set_span_in_context(span))
        child.end(9)

    assert recorded(RecorderTracerProvider, options, act) == recorded(TracerProvider, options, act)


def test_attributes_of_an_open_span_can_be_read_while_others_set_them() -> None:
    """Readers get what there is at the moment, and no attribute is lost."""
    span = RecorderTracerProvider(shutdown_on_exit=False).get_tracer(semconv.SCOPE).start_span("s")
    assert isinstance(span, RecorderSpan)
    start = threading.Barrier(5)

    def write(thread: int) -> None:
        start.wait()
        for number in range(30):
            span.set_attribute(f"{thread}.{number}", number)

    writers = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for writer in writers:
        writer.start()
    start.wait()
    while any(writer.is_alive() for writer in writers):
        assert len(list(span.attributes.items())) <= 120
    span.end()
    assert len(span.attributes) == 120
    assert span.dropped_attributes == 0


@pytest.mark.parametrize(("limit", "kept"), [("max_events", "events"), ("max_links", "links")])
def test_threads_that_add_the_first_events_or_links_lose_none(limit: str, kept: str) -> None:
    """Both are kept if one thread adds its own while another one is about to add the first."""
    others: list[threading.Thread] = []

    class Interrupted(SpanLimits):
        def __getattribute__(self, name: str) -> Any:
            if name == limit and others:
                others[0].start()
                others.pop().join(0.1)  # until it has added its own, or waits for the lock
            return super().__getattribute__(name)

    provider = RecorderTracerProvider(span_limits=Interrupted(), shutdown_on_exit=False)
    span = provider.get_tracer(semconv.SCOPE).start_span("s")
    assert isinstance(span, RecorderSpan)
    to = SpanContext(1, 2, is_remote=False)
    add = partial(span.add_event, "e") if kept == "events" else partial(span.add_link, to)
    other = threading.Thread(target=add)
    others.append(other)
    add()
    other.join()
    assert len(getattr(span, kept)) == 2


def test_spans_are_those_of_the_sdk_to_whoever_asks() -> None:
    """Libraries ask whether a tracer, span or provider is the SDK's."""
    provider = RecorderTracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer(semconv.SCOPE)
    assert provider.get_tracer(semconv.SCOPE) is tracer
    assert isinstance(provider, TracerProvider)
    assert isinstance(tracer, Tracer)
    assert isinstance(tracer.start_span("s"), Span)


def test_ended_spans_can_be_copied() -> None:
    """Processors and exporters change a deep copy; the copy has everything, and the span stays as it is."""
    kept: list[ReadableSpan] = []

    class Copying(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            kept.extend([span, copy.deepcopy(span)])

    provider = RecorderTracerProvider(span_limits=SpanLimits(max_span_attributes=2), shutdown_on_exit=False)
    provider.add_span_processor(Copying())
    span = provider.get_tracer(semconv.SCOPE).start_span("s", attributes={"a": 1, "b": (1, 2), "c": {"d": "e"}})
    span.add_event("e", {"f": "g"})
    span.end()
    original, copied = kept
    assert content_of(copied) == content_of(original)
    assert copied.attributes is not None
    assert original.attributes is not None
    assert copied.attributes["c"] is not original.attributes["c"]


def test_a_parent_without_a_context_is_none() -> None:
    """A span of another library whose context is unknown makes no parent."""
    parent = trace.set_span_in_context(NonRecordingSpan(None))  # type: ignore[arg-type]
    span = RecorderTracerProvider(shutdown_on_exit=False).get_tracer(semconv.SCOPE).start_span("s", parent)
    assert isinstance(span, RecorderSpan)
    assert span.parent is None
    assert span.is_recording()


def test_ended_spans_refuse_any_attribute() -> None:
    """Also one whose name cannot be one: no call on a span that has ended raises."""
    span: Any = RecorderTracerProvider(shutdown_on_exit=False).get_tracer(semconv.SCOPE).start_span("s")
    span.end()
    for name in ("a", ["not hashable"]):
        span.set_attribute(name, 1)
    assert not span.attributes


def test_another_sdk_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that lacks a private part, or records something else, is named as the reason to use its own spans."""
    assert needs_sdk() is None
    with monkeypatch.context() as patch:
        patch.setattr(RecorderSpan, "update_name", lambda *_: None)
        assert "records differently" in (needs_sdk() or "")
    monkeypatch.delattr(Tracer, "_is_enabled")
    assert re.search(r"opentelemetry-sdk \d.*_is_enabled", needs_sdk() or "")


def test_finding_out_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK before 1.45 warns of an attribute that is `None`; the application, which has set none, is not told."""
    set_attributes = Span.set_attributes
    log = logging.getLogger("opentelemetry.attributes")

    def set_and_warn(span: Span, attributes: Mapping[str, Any]) -> None:
        log.warning("Invalid type NoneType")
        set_attributes(span, attributes)

    monkeypatch.setattr(Span, "set_attributes", set_and_warn)
    assert needs_sdk() is None
    assert not caplog.records
    log.warning("of the application")
    assert len(caplog.records) == 1
