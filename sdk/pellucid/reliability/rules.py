"""Rules: the situation of an attempt, and the reaction to it."""

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
"""Reactions that apply to failures, unless the rule has `on`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Known usage of a run. Unknown numbers are 0, so that rules can compare them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, usage: Usage) -> Spent:
        """Return a usage with 0 for unknown numbers."""
        return cls(**{item.name: getattr(usage, item.name) or 0 for item in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Attempt that a rule decides about.

    Attributes:
        operation: `discovery`, `inference` or `tool`.
        provider_id: Id of the provider, for `discovery`.
        tool_name: Name of the tool, for `tool`.
        model: Name of the model, for `inference`.
        attempt: 0 in `pre_check`, 1 after the first attempt.
        error: Exception of the attempt.
        error_kind: Kind of the exception, independent of the vendor.
        elapsed: Seconds since the operation started, including waits.
        usage: Usage of the run so far.
        iteration: Iteration of the run, 1-based.
        identity: Identity of the run.
        response: Result of the attempt: a catalogue, a `ModelResponse`, or a tool's value.
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


class _UndeclaredSuccess:
    """Success for a rule without `on`: reading its response is deprecated, and makes the rule decide about it."""

    def __init__(self, success: Situation) -> None:
        self._success = success
        self.is_read = False

    def __getattr__(self, name: str) -> Any:
        if name == "response":
            message = "a rule that decides about successes needs `on`; write Rule(..., on='success') or on='any'"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            self.is_read = True
        return getattr(self._success, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """Answer of a rule to a situation; created by `retry()`, `fallback()` and the other functions.

    Attributes:
        kind: Kind of the rule that decided; set by the gate.
    """

    then: Then
    kind: str = ""
    backoff: float = 0.0
    max_backoff: float = 0.0
    honour_retry_after: bool = False
    value: Callable[[Situation], Any] | None = None

    async def result(self, situation: Situation) -> Any:
        """Return the result of a fallback."""
        assert self.value is not None
        result = self.value(situation)
        return await result if inspect.isawaitable(result) else result


def ok() -> Reaction:
    """Accept the attempt as it is: return its response, or raise its error."""
    return Reaction(then="ok")


def continue_() -> Reaction:
    """Continue with the first attempt (in `pre_check`)."""
    return Reaction(then="continue")


def retry(*, backoff: float = 0.2, max_backoff: float = 30.0, honour_retry_after: bool = True) -> Reaction:
    """Try again, after a wait.

    Args:
        backoff: Maximum of the first wait in seconds, doubled for each further one. The wait is a random part of the
            maximum, so that callers that failed together do not retry together ("full jitter").
        max_backoff: Maximum of every wait in seconds. If the failure requests a longer wait (`retry_after`), there is
            no retry: the failure is raised at once.
        honour_retry_after: Whether to wait as long as the failure requests.

    Raises:
        ConfigError: a time is negative.
    """
    if backoff < 0 or max_backoff < 0:
        raise ConfigError(f"retry(backoff={backoff!r}, max_backoff={max_backoff!r}): times must not be negative")
    return Reaction(then="retry", backoff=backoff, max_backoff=max_backoff, honour_retry_after=honour_retry_after)


def retry_other() -> Reaction:
    """Try the next model of a `FallbackModel`, at once."""
    return Reaction(then="retry_other")


def fallback(value: Callable[[Situation], Any]) -> Reaction:
    """Continue with another result.

    Args:
        value: Sync or async function of the situation. For discovery it returns tools, or is `last_known_catalog`; for
            inference it returns a `ModelResponse`, a `Message` or a text; for a tool, the value of the tool.

    Raises:
        ConfigError: `value` is not callable.
    """
    if not callable(value):
        raise ConfigError(f"fallback({value!r}): pass a function of the situation, such as lambda s: ...")
    return Reaction(then="fallback", value=value)


def fail_fast() -> Reaction:
    """End the run with `ReliabilityFailFast`."""
    return Reaction(then="fail_fast")


def last_known_catalog(situation: Situation) -> Any:
    """Fall back to the tools that the provider last listed for the same identity and skills; for `fallback()`."""
    raise ConfigError("last_known_catalog is only for discovery: Rule(when=lambda s: s.operation == 'discovery', ...)")


@dataclass(frozen=True, slots=True)
class Rule:
    """Condition, and the reaction to an attempt that meets it.

    Attributes:
        when: Fast sync function of the situation; the rule matches if it returns a true value.
        then: `retry()`, `retry_other()`, `fallback(...)`, `fail_fast()`, `ok()` or `continue_()`.
        kind: Name of low cardinality, for events and metrics.
        on: Outcomes of an attempt that the rule decides about: `failure`, `success` or `any`. By default, `retry()`,
            `retry_other()` and `fallback(...)` apply to failures, the other reactions to any outcome.

    Raises:
        ConfigError: an attribute has the wrong type, `kind` is empty, or `on` is unknown.
    """

    when: Callable[[Situation], object]
    then: Reaction
    kind: str
    on: Outcome | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.when):
            raise ConfigError(f"Rule {self.kind!r}: when={self.when!r} is not a function of the situation")
        if inspect.iscoroutinefunction(self.when):
            raise ConfigError(f"Rule {self.kind!r}: when={self.when!r} is async; use a sync function")
        if not isinstance(self.then, Reaction):
            raise ConfigError(f"Rule {self.kind!r}: then={self.then!r} is not a reaction; call it, as in then=retry()")
        if not self.kind:
            raise ConfigError.empty("Rule", "kind", "it names the rule in events and metrics")
        if self.on is not None and self.on not in get_args(Outcome):
            outcomes = ", ".join(map(repr, get_args(Outcome)))
            raise ConfigError(f"Rule {self.kind!r}: on={self.on!r} is not an outcome; use one of {outcomes}")

    def matches(self, situation: Situation) -> bool:
        """Return whether the rule decides about a situation."""
        outcome: Outcome = "success" if situation.error is None else "failure"
        if situation.attempt == 0 or self.on == "any" or (self.on is None and self.then.then not in FOR_FAILURES):
            return bool(self.when(situation))
        if outcome == (self.on or "failure"):
            return bool(self.when(situation))
        if self.on is not None:
            return False
        success: Any = _UndeclaredSuccess(situation)
        return bool(self.when(success)) and success.is_read
