"""Reliability: rules about failures, and one gate around discovery, inference and tools that applies them."""

from typing import TYPE_CHECKING, TypeAlias

from pellucid.module_names import module_getattr
from pellucid.reliability.breaker import CircuitBreaker
from pellucid.reliability.gate import Gate, Subject
from pellucid.reliability.options import Reliability
from pellucid.reliability.rules import (
    Reaction,
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
    "Gate",
    "Reaction",
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

if TYPE_CHECKING:
    Decision: TypeAlias = Reaction
else:
    __getattr__ = module_getattr(__name__, deprecated={"Decision": (__name__, "Reaction")})
