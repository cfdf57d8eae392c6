"""What the boundary of one span records of its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from opentelemetry.trace import Span, format_span_id
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.telemetry.recording import Recorded, Recorder
from pellucid.telemetry.sanitize import size_of

Record: TypeAlias = Callable[[Recorder], Recorded]
"""Makes what is recorded; called only if something is."""

_REFERABLE: Final = frozenset({semconv.INPUT, semconv.OUTPUT})
"""Attributes that may hold a reference; those of the conventions have the shape that these prescribe."""


REPEATED: Final = 256
"""Characters from which content that an earlier span has is referred to; less is as short as the reference."""


class Content:
    """Takes what is recorded on one span, within the bound of a span.

    Attributes:
        attributes: What was taken, for the span.
    """

    __slots__ = ("_omitted", "_recorder", "_room", "_span", "attributes")

    def __init__(self, recorder: Recorder, span: Span) -> None:
        self._recorder = recorder
        self._span = span
        self._room = recorder.policy.max_span_bytes
        self._omitted = 0
        self.attributes: dict[str, AttributeValue] = {}

    def add(self, attribute: str, record: Record) -> Recorded:
        """Record one value, shortened to what the bound of the span leaves room for."""
        recorded = record(self._recorder)
        if recorded.json is not None:
            if len(recorded.json) >= REPEATED and attribute in _REFERABLE:
                recorded = self._recorder.referring(recorded, format_span_id(self._span.get_span_context().span_id))
            if size_of(recorded.json or "") > self._room:
                recorded = recorded.within(self._room)
            size = size_of(recorded.json or "")
            if size <= self._room:  # there may not even be room for an empty list
                self._room -= size
                self.attributes[attribute] = recorded.json or ""
        if recorded.omitted:
            self._omitted += recorded.omitted
            self.attributes[semconv.CONTENT_OMITTED] = self._omitted
        if recorded.recorded_on is not None:
            self.attributes[semconv.CONTENT_REPEATED] = recorded.repeated
            self.attributes[semconv.CONTENT_RECORDED_ON] = recorded.recorded_on
        return recorded

    def add_end(self, attribute: str, digest: str, size: str, record: Record) -> None:
        """Record the input or output with its digest and size."""
        recorded = self.add(attribute, record)
        self.attributes[digest] = recorded.digest
        self.attributes[size] = recorded.size

    def add_new(self, attribute: str, version: str, record: Record) -> None:
        """Record a value unless the run has recorded this version of it already."""
        if self._recorder.is_new(attribute, version):
            self.add(attribute, record)
