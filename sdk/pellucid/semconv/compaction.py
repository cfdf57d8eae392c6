"""The instruments of requests that are fitted into a window; a program without a `Context` does not load them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.metrics import Metric
from pellucid.semconv.names import AGENT_NAME, COMPOSE_PART, COMPOSE_STRATEGY

REQUEST_TOKENS: Final = Metric(
    "histogram",
    "{token}",
    "pellucid.compose.tokens",
    "Estimated tokens of a part of a request that was fitted into the model's window.",
    (AGENT_NAME, COMPOSE_PART),
    tuple(float(4**n) for n in range(14)),
)
DROPPED_MESSAGES: Final = Metric(
    "counter",
    "{message}",
    "pellucid.compose.dropped",
    "Messages that requests newly leave out of conversations, whole or in part.",
    (AGENT_NAME, COMPOSE_STRATEGY),
)

COMPACTION_METRICS: Final = (REQUEST_TOKENS, DROPPED_MESSAGES)
"""Instruments of agents with a `Context`."""
