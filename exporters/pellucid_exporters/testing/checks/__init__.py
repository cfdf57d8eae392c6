"""Consistency check of captured spans, metrics, events and log lines.

```python
with capture() as telemetry:
    agent.run_sync("Will it rain in Bergen?")
check_telemetry(telemetry)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid_exporters.testing.checks import async_calls, measurements, records, spans
from pellucid_exporters.testing.checks.observed import Observed

if TYPE_CHECKING:
    from pellucid_exporters.testing.captured import Captured

MOST_SHOWN = 20


def check_telemetry(captured: Captured) -> None:
    """Check captured telemetry after all its runs have ended.

    Of spans: each has ended once, lies within its parent, has the attributes of its phase with an outcome, status and
    `error.type` that agree, and content that is valid JSON within its bounds; the phases of a run come in their order;
    the usage of a run is that of its own model calls, without that of runs nested in it.
    Of metrics: durations are those of the spans, counts are theirs, labels are allowed ones, exemplars lead to the span
    that was measured, and usage adds up. Of events, log lines and boundary records: each span has its own, which agree
    with it. Decisions of reliability rules, and what happens to asynchronous calls, are recorded on spans, counted and
    emitted as events consistently. Spans of other instrumentation are ignored, and replays are not measured.

    Raises:
        AssertionError: a check failed; the message lists all failures.
    """
    observed = Observed.of(captured)
    measured = observed.measured()
    problems = [
        *spans.check(observed),
        *measurements.check(measured),
        *records.check(observed),
        *async_calls.check(measured),
    ]
    if problems:
        more = len(problems) - MOST_SHOWN
        shown = problems[:MOST_SHOWN] + ([f"... and {more} more"] if more > 0 else [])
        raise AssertionError("telemetry is inconsistent:\n" + "\n".join(f"- {problem}" for problem in shown))
