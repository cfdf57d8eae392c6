"""Reliability options of an agent: rules, circuit breakers and their clock."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Self

import anyio

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.errors import ConfigError
from pellucid.reliability.breaker import Circuit, CircuitBreaker
from pellucid.reliability.rules import Rule, Situation, retry

RETRIES: Final = 2
"""Number of times that `Reliability.standard` repeats a call, as vendors' SDKs do."""

MOST: Final = 4096
"""Maximum number of circuits; closed ones that were used least recently are evicted first."""


@dataclass(eq=False, repr=False)
class Reliability:
    """Rules for failures of discovery, inference and tools. Without it, nothing is retried and failures are raised.

    ```python
    Reliability(
        [
            Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(), kind="hub-transient"),
            Rule(when=lambda s: s.error_kind == "rate_limited" and s.attempt < 5, then=retry(), kind="rate-limit"),
            Rule(when=lambda s: s.operation == "discovery", then=fallback(last_known_catalog), kind="degraded"),
        ],
        pre_check=[Rule(when=lambda s: s.usage.cost > 2, then=fail_fast(), kind="budget")],
        breaker=CircuitBreaker(failures=5, cooldown=30),
    )
    ```

    The first rule that matches decides. Without a match, a response is returned and an error is raised. A response is
    retried or replaced only by rules with `on="success"` or `on="any"`. A cancellation is not a failure. Agents that
    share a `Reliability` also share its circuit breakers.

    Args:
        post_decide: Rules evaluated after each attempt, whatever its outcome.
        pre_check: Rules evaluated before the first attempt; only `fail_fast()` has an effect there.
        breaker: Options of the circuit breakers, one per provider, model and tool, which outlive runs.
        fails_closed: Whether a rule that cannot be evaluated ends the run; otherwise it is skipped. Both are counted.
        clock: Returns the time of a monotonic clock in seconds.
        sleep: Waits for a number of seconds.
        jitter: Returns a number from 0 to 1.

    Raises:
        ConfigError: an item of `post_decide` or `pre_check` is not a rule, or a rule in `pre_check` has `on`.
    """

    post_decide: Sequence[Rule] = ()
    _: KW_ONLY
    pre_check: Sequence[Rule] = ()
    breaker: CircuitBreaker | None = None
    fails_closed: bool = True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self.post_decide, self.pre_check = tuple(self.post_decide), tuple(self.pre_check)
        for rule in (*self.post_decide, *self.pre_check):
            if not isinstance(rule, Rule):
                raise ConfigError(f"Reliability: {rule!r} is not a Rule(when=, then=, kind=)")
        for rule in self.pre_check:
            if rule.on is not None:
                raise ConfigError(
                    f"Reliability: the rule {rule.kind!r} in pre_check has on={rule.on!r}; remove it, because "
                    "there is no outcome before the first attempt"
                )
        self._circuits: BoundedMap[Hashable, Circuit] = BoundedMap(MOST, is_spare=lambda circuit: circuit.level == 0)

    @classmethod
    def standard(cls) -> Self:
        """Return the rule that vendors' own SDKs apply by default, for model calls only.

        A call is repeated up to twice if the vendor limits the rate (429), fails (408, 409, 5xx) or cannot be reached:
        after the time that it names (`Retry-After`), up to a minute, or else after a random part of 0.5 and 1 s. A call
        that passed `Limits.model_timeout` is not repeated.
        """
        return cls([Rule(when=_is_passing, then=retry(backoff=0.5, max_backoff=60.0), kind="standard")])

    def circuit_of(self, subject: Hashable) -> Circuit | None:
        """Return the circuit of a provider, model or tool; None without a breaker."""
        if self.breaker is None:
            return None
        return self._circuits.get(subject) or self._circuits.setdefault(subject, Circuit(self.breaker, self.clock))


def _is_passing(situation: Situation) -> bool:
    """Return whether a model call failed in a way that may pass soon."""
    kind, status = situation.error_kind, getattr(situation.error, "status", None)
    may_pass = kind in ("rate_limited", "unavailable") or (kind == "timeout" and status is not None)
    return situation.operation == "inference" and situation.attempt <= RETRIES and may_pass
