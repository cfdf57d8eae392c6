"""Retries of durable runs: which failed passes are tried again, and when."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pellucid.durable.store import Streak
from pellucid.errors import (
    CheckpointError,
    ConfigError,
    ErrorKind,
    PolicyHalt,
    ReliabilityFailFast,
    RunTimeout,
    StoreUnavailable,
    ToolNameCollision,
)
from pellucid.failures import error_kind_of, error_type_of, retry_after_of

_TRANSIENT: Final[frozenset[ErrorKind]] = frozenset({"timeout", "rate_limited", "unavailable", "circuit_open"})

_LASTING: Final = (CheckpointError, ConfigError, PolicyHalt, ReliabilityFailFast, RunTimeout, ToolNameCollision)
"""Errors that another pass would meet again, whatever their kind or their cause."""

_LONGEST: Final = 30
"""Attempts after which a back-off grows no more; no number of seconds is finite after many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number and times of the attempts of a durable run after a pass that has failed.

    A pass is retried whose error is of a kind that may pass: `timeout`, `rate_limited`, `unavailable` and
    `circuit_open`. An error of unknown kind is retried once: the run fails if the next pass fails alike. Any other
    error fails the run at once, such as a bad option or a decision of the permission policy.

    Attempts are counted in a row: an answer of the model or a result of a tool starts anew.

    Args:
        max_attempts: Passes that may fail in a row; then the run fails.
        max_elapsed: Seconds after the first of these failures within which the next attempt must start.
        backoff: Maximum of the first wait in seconds. The wait is a random part of the maximum, so that runs that
            failed together do not go on together ("full jitter"), but at least what the error asks for (`Retry-After`).
        factor: By how much the maximum grows with each further wait.
        max_backoff: Maximum of every wait in seconds.
        jitter: Returns a number from 0 to 1.

    Raises:
        ConfigError: a number is out of its range.
    """

    max_attempts: int = 5
    max_elapsed: float = 3600.0
    backoff: float = 10.0
    factor: float = 4.0
    max_backoff: float = 900.0
    jitter: Callable[[], float] = field(default=random.random, repr=False)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"RetryPolicy(max_attempts={self.max_attempts!r}): must be at least 1")
        for name in ("max_elapsed", "backoff", "max_backoff"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ConfigError(f"RetryPolicy({name}={value!r}): must be a number of seconds, and not negative")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigError(f"RetryPolicy(factor={self.factor!r}): must be at least 1")

    def delay(self, error: Exception, before: Streak) -> float | None:
        """Return the seconds after which a run goes on whose pass has failed; None if it fails.

        Args:
            error: Error of the pass.
            before: The passes in a row that have failed before.
        """
        attempts = before.attempts + 1
        if attempts >= self.max_attempts or not _may_pass(error, before):
            return None
        longest = min(self.backoff * self.factor ** min(before.attempts, _LONGEST), self.max_backoff)
        delay = max(longest * self.jitter(), retry_after_of(error) or 0.0)
        return delay if before.elapsed + delay <= self.max_elapsed else None


def _may_pass(error: Exception, before: Streak) -> bool:
    """Return whether another pass may not meet an error."""
    if isinstance(error, _LASTING):
        return False
    kind = error_kind_of(error)
    is_other = kind == "unknown" and before.error_type != error_type_of(error)
    return is_other or kind in _TRANSIENT or isinstance(error, StoreUnavailable)
