"""Reliability: rules about failures, and one gate around discovery, inference and tools that applies them."""

from pellucid.reliability.breaker import CircuitBreaker
from pellucid.reliability.gate import Gate, Subject
from pellucid.reliability.options import Reliability
from pellucid.reliability.rules import (
    Decision,
    Rule,
    Situation,
    continue_,
    fail_fast,
    fallback,
    last_known_catalog,
    ok,
    retry,
    retry_other,
)

__all__ = [
    "CircuitBreaker",
    "Decision",
    "Gate",
    "Reliability",
    "Rule",
    "Situation",
    "Subject",
    "continue_",
    "fail_fast",
    "fallback",
    "last_known_catalog",
    "ok",
    "retry",
    "retry_other",
]
