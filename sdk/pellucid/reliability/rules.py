"""The language of rules: what is known of an attempt, and what is to be done about it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, get_args

from pellucid.context import Identity
from pellucid.errors import ConfigError, ErrorKind
from pellucid.messages import Usage

Operation: TypeAlias = Literal["discovery", "inference", "tool"]
Then: TypeAlias = Literal["ok", "continue", "retry", "retry_other", "fallback", "fail_fast"]
Outcome: TypeAlias = Literal["failure", "success", "any"]

FOR_FAILURES: Final[frozenset[Then]] = frozenset({"retry", "retry_other", "fallback"})
"""Decisions that are for failures, unless a rule says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run has used, as far as that is known: here, what is unknown counts as 0, so that it can be compared."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, usage: Usage) -> Spent:
        """Return what is known of a usage."""
        return cls(**{known.name: getattr(usage, known.name) or 0 for known in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a rule may base its answer on.

    Attributes:
        operation: `discovery`, `inference` or `tool`.
        provider_id, tool_name, model: Which one; the two others are None.
        attempt: 0 in `pre_check`, 1 after the first attempt.
        error: What the attempt raised.
        error_kind: What that means.
        elapsed: Seconds since the operation began, with the waiting.
        usage: What the run has used so far.
        response: What the attempt returned: a catalogue, a `ModelResponse`, or a tool's value.
    """

    operation: Operation
    provider_id: str | None = None
    tool_name: str | None = None
    model: str | None = None
    attempt: int = 0
    error: BaseException | None = None
    error_kind: ErrorKind | None = None
    elapsed: float = 0.0
    usage: Spent
    iteration: int = 0
    identity: Identity | None = None
    response: Any = None


class _UndeclaredSuccess(Situation):
    """A success, for a rule without `on`: reading its response is deprecated, and lets the rule decide about it."""

    __slots__ = ("_success", "is_read")

    def __init__(self, success: Situation) -> None:
        for known in fields(success):
            if known.name != "response":
                object.__setattr__(self, known.name, getattr(success, known.name))
        object.__setattr__(self, "_success", success)
        object.__setattr__(self, "is_read", False)

    def __getattr__(self, name: str) -> Any:
        """Return the response, which alone is not set."""
        if name != "response":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        message = "a rule that decides about successes needs `on`; write Rule(..., on='success') or on='any'"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        object.__setattr__(self, "is_read", True)
        return self._success.response


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do; made by `retry()`, `fallback()` and the others."""

    then: Then
    backoff: float = 0.0
    max_backoff: float = 0.0
    honour_retry_after: bool = False
    value: Callable[[Situation], Any] | None = None

    async def result(self, situation: Situation) -> Any:
        """Return what a fallback gives instead."""
        assert self.value is not None
        given = self.value(situation)
        return await given if inspect.isawaitable(given) else given


_OK: Final = Decision(then="ok")
_CONTINUE: Final = Decision(then="continue")
_RETRY_OTHER: Final = Decision(then="retry_other")
_FAIL_FAST: Final = Decision(then="fail_fast")


def ok() -> Decision:
    """Take the attempt as it is: return its response, or raise its error."""
    return _OK


def continue_() -> Decision:
    """Go on (in `pre_check`)."""
    return _CONTINUE


def retry(*, backoff: float = 0.2, max_backoff: float = 30.0, honour_retry_after: bool = True) -> Decision:
    """Try again, after a wait.

    Args:
        backoff: Seconds that the first wait is at most; each further one is at most twice as long. Each is a random
            part of that, so that many who failed together do not come back together ("full jitter").
        max_backoff: Seconds that no wait exceeds. Who wants a longer one (`retry_after`) is not asked again: the
            failure is raised at once.
        honour_retry_after: Wait as long as the failure says, if it says so.

    Raises:
        ConfigError: a time is negative.
    """
    if backoff < 0 or max_backoff < 0:
        raise ConfigError(f"retry(backoff={backoff!r}, max_backoff={max_backoff!r}): times must not be negative")
    return Decision(then="retry", backoff=backoff, max_backoff=max_backoff, honour_retry_after=honour_retry_after)


def retry_other() -> Decision:
    """Try the next model of a `FallbackModel`, at once."""
    return _RETRY_OTHER


def fallback(value: Callable[[Situation], Any]) -> Decision:
    """Go on with another result.

    Args:
        value: Sync or async function of the situation. For discovery it returns tools, or is `last_known_catalog`; for
            inference a `ModelResponse`, a `Message` or a text; for a tool its value.
    """
    if not callable(value):
        raise ConfigError(f"fallback({value!r}): give it a function of the situation, such as lambda s: ...")
    return Decision(then="fallback", value=value)


def fail_fast() -> Decision:
    """End the run with `ReliabilityFailFast`."""
    return _FAIL_FAST


def last_known_catalog(situation: Situation) -> Any:
    """Stand for the last tools that a provider listed for the same identity and skills, in `fallback()`."""
    raise ConfigError("last_known_catalog is for discovery: Rule(when=lambda s: s.operation == 'discovery', ...)")


@dataclass(frozen=True, slots=True)
class Rule:
    """When to do what.

    Attributes:
        when: A quick function of the situation; the rule matches if it returns something true.
        then: `retry()`, `retry_other()`, `fallback(...)`, `fail_fast()`, `ok()` or `continue_()`.
        kind: A name of low cardinality, for events and metrics.
        on: Outcomes of an attempt that the rule decides about: `failure`, `success` or `any`. Unless given, `retry()`,
            `retry_other()` and `fallback(...)` are for failures, the others for any outcome.
    """

    when: Callable[[Situation], object]
    then: Decision
    kind: str
    on: Outcome | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.when):
            raise ConfigError(f"Rule {self.kind!r}: when={self.when!r} is no function of the situation")
        if inspect.iscoroutinefunction(self.when):
            raise ConfigError(f"Rule {self.kind!r}: when={self.when!r} is async; rules are asked without waiting")
        if not isinstance(self.then, Decision):
            raise ConfigError(f"Rule {self.kind!r}: then={self.then!r} is no decision; call it, as in then=retry()")
        if not self.kind:
            raise ConfigError.empty("Rule", "kind", "it names the rule in events and metrics")
        if self.on is not None and self.on not in get_args(Outcome):
            known = ", ".join(map(repr, get_args(Outcome)))
            raise ConfigError(f"Rule {self.kind!r}: on={self.on!r} is not an outcome; known are {known}")

    def matches(self, situation: Situation) -> bool:
        """Return whether the rule decides about a situation."""
        outcome: Outcome = "success" if situation.error is None else "failure"
        if situation.attempt == 0 or self.on == "any" or (self.on is None and self.then.then not in FOR_FAILURES):
            return bool(self.when(situation))
        if outcome == (self.on or "failure"):
            return bool(self.when(situation))
        if self.on is not None:
            return False
        success = _UndeclaredSuccess(situation)
        return bool(self.when(success)) and success.is_read
