"""Helpers for tests of reliability rules: failures, rules without real time, and readers of events and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pellucid import ModelError, Reliability
from pellucid.reliability import CircuitBreaker
from support.clock import Clock

if TYPE_CHECKING:
    from pellucid import ErrorKind
    from pellucid.reliability import Rule
    from pellucid_exporters.testing import Captured


def rules(*given: Rule, time: Clock | None = None, **options: Any) -> Reliability:
    """Return rules that wait in a time of their own, and always the whole wait."""
    time = time or Clock()
    return Reliability(given, clock=time, sleep=time.sleep, jitter=lambda: 1.0, **options)


def breaking(time: Clock, failures: int = 2, cooldown: float = 10.0) -> Reliability:
    """Return circuit breakers without further rules."""
    return Reliability(breaker=CircuitBreaker(failures=failures, cooldown=cooldown), clock=time)


def down(kind: ErrorKind = "unavailable", **more: Any) -> ModelError:
    """Return a model's failure."""
    return ModelError("m", "down", error_kind=kind, **more)


def told(telemetry: Captured) -> list[tuple[str, Any, int]]:
    """Return what the events say was decided: name, kind, attempt."""
    return [
        (event.name.removeprefix("reliability."), getattr(event, "kind", None), getattr(event, "attempt", 0))
        for event in telemetry.events
        if event.name.startswith("reliability.")
    ]


def decisions(telemetry: Captured) -> dict[tuple[str, str, str], float]:
    """Return the counter of decisions by operation, decision and kind."""
    return {
        (
            point.attributes["pellucid.operation"],
            point.attributes["pellucid.reliability.then"],
            point.attributes["pellucid.reliability.kind"],
        ): point.value
        for point in telemetry.metrics
        if point.name == "pellucid.reliability.decisions"
    }


def changes(telemetry: Captured) -> list[str]:
    """Return the events of circuits."""
    return [event.name for event in telemetry.events if event.name.startswith("circuit.")]


def states(telemetry: Captured) -> list[float]:
    """Return what the gauge of circuits shows."""
    return [point.value for point in telemetry.metrics if point.name == "pellucid.circuit.state"]
