"""Checks of counters, span events and events of reliability decisions, by `check_telemetry`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.sdk.trace import Event as SpanEvent

from fidelity.scripts import make_tool
from pellucid import Agent, DiscoveryContext, ModelError, Reliability, Tool, ToolCall, semconv
from pellucid.errors import ReliabilityFailFast
from pellucid.reliability import Rule, fail_fast, fallback, retry
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured, capture, check_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = [
    Rule(when=lambda s: s.operation == "tool" and s.error is not None, then=fallback(lambda s: "none"), kind="canned"),
    Rule(when=lambda s: s.error is not None and s.attempt < 2, then=retry(backoff=0.0), kind="again"),
]
SPANS = ["discover_tools flaky", "chat scripted", "execute_tool broken", "invoke_agent spent"]


async def broken(arguments: Any, ctx: Any) -> str:
    """Fail."""
    raise OSError("broken")


class Flaky:
    """A provider that fails at first."""

    id = "flaky"

    def __init__(self) -> None:
        self.asked = 0

    def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Fail, then list."""
        self.asked += 1
        if self.asked == 1:
            raise OSError("down")
        return [make_tool("broken", broken)]


async def go() -> None:
    """Let rules decide about discovery, a model and a tool, and before a run begins."""
    model = ScriptedModel(ModelError("m", "down", error_kind="unavailable"), ToolCall("broken", {"n": 1}), "done")
    await Agent("a", model=model, providers=[Flaky()], reliability=Reliability(RULES)).run("go")
    budget = Rule(when=lambda s: s.operation == "inference", then=fail_fast(), kind="budget")
    with pytest.raises(ReliabilityFailFast):
        await Agent("spent", model=ScriptedModel(), reliability=Reliability(pre_check=[budget])).run("go")


@pytest.fixture
def told() -> Iterator[Captured]:
    """Telemetry of runs with reliability rules; it is right until a test changes it."""
    with capture() as telemetry:
        anyio.run(go)
        check_telemetry(telemetry)
        telemetry.is_checked = False
        yield telemetry


def decisions(span: Any) -> list[SpanEvent]:
    """Return the span events of decisions of rules."""
    return [event for event in span.events if event.name.startswith("reliability.")]


def with_events(span: Any, events: list[SpanEvent]) -> None:
    """Replace the events of a span."""
    span._events = tuple(events)


@pytest.mark.parametrize("name", SPANS)
def test_a_count_without_a_span_event_is_found(told: Captured, name: str) -> None:
    """`check_telemetry` finds a counted decision without a span event, for each kind of span."""
    span = next(span for span in told.find(name) if decisions(span))
    with_events(span, [event for event in span.events if event not in decisions(span)])
    with pytest.raises(
        AssertionError, match=r"pellucid\.reliability\.decisions of .* adds up to \d+\.?0?, its spans to"
    ):
        check_telemetry(told)


@pytest.mark.parametrize("name", SPANS)
def test_a_span_event_without_a_count_is_found(told: Captured, name: str) -> None:
    """`check_telemetry` finds a span event that is there twice but was counted once."""
    span = next(span for span in told.find(name) if decisions(span))
    with_events(span, [*span.events, decisions(span)[0]])
    with pytest.raises(AssertionError, match=r"pellucid\.reliability\.decisions of .* adds up to"):
        check_telemetry(told)


@pytest.mark.parametrize("attribute", [semconv.RELIABILITY_THEN, semconv.RELIABILITY_KIND])
def test_a_span_event_that_says_something_else_is_found(told: Captured, attribute: str) -> None:
    """`check_telemetry` finds a span event whose decision or kind differs from the count."""
    span = next(span for span in told.find("chat") if decisions(span))
    [event] = decisions(span)
    with_events(span, [SpanEvent(event.name, {**(event.attributes or {}), attribute: "x"}, event.timestamp)])
    with pytest.raises(AssertionError, match=r"pellucid\.reliability\.decisions of .*'x'.* adds up to 0"):
        check_telemetry(told)


def test_an_event_that_its_span_does_not_note_is_found(told: Captured) -> None:
    """`check_telemetry` finds a repeated or missing event of a decision, and one of another attempt."""
    events = list(told.events)
    index = [event.name for event in events].index("reliability.fell_back")
    late: Any = events[index]
    for changed, complaint in (
        ([*events, late], r"has an event reliability\.fell_back of attempt 1 that it does not note"),
        (
            [*events[:index], *events[index + 1 :]],
            r"notes reliability\.fell_back at attempt 1, but no event was emitted",
        ),
        ([*events[:index], replace(late, attempt=7), *events[index + 1 :]], r"of attempt 7 that it does not note"),
    ):
        told.events[:] = changed
        with pytest.raises(AssertionError, match=complaint):
            check_telemetry(told)
    told.events[:] = events
    check_telemetry(told)
