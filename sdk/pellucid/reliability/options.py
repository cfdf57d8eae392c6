"""What an agent is given: rules, breakers, and the time that they go by."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from pellucid.errors import ConfigError
from pellucid.reliability.breaker import CircuitBreaker, Circuits
from pellucid.reliability.rules import Rule


class Reliability:
    """What to do when discovery, inference or a tool fails. Without it nothing is tried again, and failures are loud.

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

    The first rule that matches decides; without one a response is taken, and an error raised. A response is retried or
    replaced only by rules with `on="success"` or `on="any"`. A cancellation is not a failure. Agents may share one;
    then they share its breakers too.

    Args:
        post_decide: Rules asked after each attempt, whatever came of it.
        pre_check: Rules asked before the first attempt; only `fail_fast()` does anything there.
        breaker: Each provider, model and tool gets a circuit breaker of this kind, which outlives runs.
        fails_closed: A rule that cannot be evaluated ends the run; otherwise it is passed over. Both are counted.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
        jitter: Returns a number from 0 to 1.

    Raises:
        ConfigError: something of this is no rule.
    """

    def __init__(
        self,
        post_decide: Sequence[Rule] = (),
        *,
        pre_check: Sequence[Rule] = (),
        breaker: CircuitBreaker | None = None,
        fails_closed: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        for rule in (*post_decide, *pre_check):
            if not isinstance(rule, Rule):
                raise ConfigError(f"Reliability: {rule!r} is no Rule(when=, then=, kind=)")
        for rule in pre_check:
            if rule.on is not None:
                raise ConfigError(
                    f"Reliability: the rule {rule.kind!r} in pre_check has on={rule.on!r}; leave it out, as "
                    "there is no outcome before the first attempt"
                )
        self.post_decide = tuple(post_decide)
        self.pre_check = tuple(pre_check)
        self.fails_closed = fails_closed
        self.clock = clock
        self.sleep = sleep
        self.jitter = jitter
        self.circuits = Circuits(breaker, clock) if breaker is not None else None
