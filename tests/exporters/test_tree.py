"""Lines of the console: durations, and how lines are cut where there is little room."""

from __future__ import annotations

import io
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from pellucid import semconv
from pellucid_exporters.console import Console, ConsoleProcessor


def shown(*tools: tuple[str, int], width: int | None = None) -> list[str]:
    """Return the lines of a run with tools of these names and durations in nanoseconds."""
    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream, width=width)))
    tracer = provider.get_tracer(semconv.SCOPE)
    run = tracer.start_span("invoke_agent a", start_time=0)
    inside = trace.set_span_in_context(run)
    facts: dict[str, Any] = {semconv.PHASE: semconv.DISPATCH, semconv.PROVIDER_ID: "catalogue", semconv.ITERATION: 1}
    for name, nanoseconds in tools:
        span = tracer.start_span(f"execute_tool {name}", context=inside, start_time=0, attributes=facts)
        span.end(end_time=nanoseconds)
    run.end(end_time=0)
    provider.shutdown()
    return stream.getvalue().splitlines()[:-1]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.0 ms"),
        (999_960, "1.0 ms"),
        (9_940_000, "9.9 ms"),
        (9_960_000, "10 ms"),
        (999_400_000, "999 ms"),
        (999_600_000, "1.00 s"),
        (1_000_000_000, "1.00 s"),
        (59_994_000_000, "59.99 s"),
        (59_996_000_000, "1 min 0 s"),
        (119_600_000_000, "2 min 0 s"),
    ],
)
def test_a_duration_has_the_unit_that_it_is_rounded_to(nanoseconds: int, text: str) -> None:
    """A duration that rounds to a second or a minute is shown in that unit."""
    _, line = shown(("add", nanoseconds))
    assert line.split("[1]")[1].split("  from")[0].strip() == text


def test_names_are_shortened_before_durations() -> None:
    """Names and facts are cut before durations where there is little room."""
    tools = [("add", 12_000_000), ("search_for_something_with_a_long_name", 54_000_000_000)]
    assert shown(*tools, width=40) == [
        "invoke_agent a                   0.0 ms",
        "├─ execute_tool add     [1]       12 ms…",
        "└─ execute_tool search… [1]     54.00 s…",
    ]
    assert shown(*tools, width=25) == [
        "invoke_…          0.0 ms",
        "├─ exec… [1]       12 ms…",
        "└─ exec… [1]     54.00 s…",
    ]
    assert max(map(len, shown(*tools, width=8))) == 8
