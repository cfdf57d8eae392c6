"""In-memory telemetry for tests, with deterministic ids and a deterministic clock.

```python
def test_the_forecast_comes_from_the_hub():
    with capture() as telemetry:
        Agent("weather", model=model, providers=[hub]).run_sync("Will it rain in Bergen?")
    assert telemetry.tree()[0][0] == "invoke_agent weather"
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="rube").count == 1
```

With pytest, use the fixture `telemetry` instead of `with`.
"""

from pellucid_exporters.testing.captured import FIRST_READING, TICK, Captured, Exemplar, Point, Tree, Which, capture
from pellucid_exporters.testing.captured_span import CapturedSpan
from pellucid_exporters.testing.checks import check_telemetry

__all__ = [
    "FIRST_READING",
    "TICK",
    "Captured",
    "CapturedSpan",
    "Exemplar",
    "Point",
    "Tree",
    "Which",
    "capture",
    "check_telemetry",
]
