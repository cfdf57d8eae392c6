"""Counters of a queue. All methods can be called from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from opentelemetry import metrics
from opentelemetry.context import Context

from pellucid import semconv
from pellucid.durable.states.work_queue import DeadReason
from pellucid.telemetry import Pipeline, Scope, current_default

MessageKind: TypeAlias = Literal["work", "event"]
DropReason: TypeAlias = Literal["full", "unavailable"]


class QueueMetrics:
    """Counters of one queue.

    Args:
        telemetry: Destination of the telemetry, as for an agent.
    """

    def __init__(self, telemetry: Pipeline | None) -> None:
        self._telemetry = telemetry
        self._scope_key: object = None
        self._scope: Scope | None = None

    def published(self, kind: MessageKind, number: int = 1) -> None:
        """Count messages that were stored."""
        self._count(semconv.QUEUE_PUBLISHED, {semconv.QUEUE_MESSAGE: kind}, number)

    def dropped(self, kind: MessageKind, reason: DropReason) -> None:
        """Count a message that was not stored, as far as is known."""
        self._count(semconv.QUEUE_DROPPED, {semconv.QUEUE_MESSAGE: kind, semconv.QUEUE_REASON: reason})

    def redelivered(self, agent: str) -> None:
        """Count a message that was received again."""
        self._count(semconv.QUEUE_REDELIVERED, {semconv.AGENT_NAME: agent})

    def dead_lettered(self, agent: str, reason: DeadReason) -> None:
        """Count a message that was moved to the dead letters."""
        self._count(semconv.QUEUE_DEAD_LETTERED, {semconv.AGENT_NAME: agent, semconv.QUEUE_REASON: reason})

    def _count(self, metric: semconv.Metric, labels: Mapping[str, str], number: int = 1) -> None:
        key = (current_default(), metrics.get_meter_provider())
        if self._scope is None or key != self._scope_key:  # an application may configure telemetry at any time
            self._scope, self._scope_key = Scope(pipeline=self._telemetry), key
        self._scope.count(metric, number, labels, Context())
