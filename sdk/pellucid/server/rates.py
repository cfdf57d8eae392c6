"""Rate of requests of each caller: a token bucket by tenant and principal, in this process."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.server.problems import Problem

MAX_CALLERS: Final = 10_000
"""Callers whose rate is known; the one that was away for the longest starts with a full bucket again."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float
    """Time of `tokens`, by the clock."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """Limit of the requests of one principal to one process; for several, set the limit at the ingress.

    Attributes:
        per_second: Requests per second in the long run.
        burst: Requests that may come at once.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: a number is not positive, or `burst` is below 1.
    """

    per_second: float
    burst: int = 20
    clock: Callable[[], float] = monotonic
    _buckets: OrderedDict[tuple[str | None, str | None], _Bucket] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 0 < self.per_second < math.inf or self.burst < 1:
            raise ConfigError(
                f"RequestRate({self.per_second!r}, burst={self.burst!r}): per_second must be positive, burst at least 1"
            )

    def take(self, caller: Identity) -> None:
        """Count one request of a caller.

        Raises:
            Problem: 429 with `Retry-After`, there were too many.
        """
        now, key = self.clock(), (caller.tenant, caller.principal)
        bucket = self._buckets.pop(key, None) or _Bucket(self.burst, now)
        bucket.tokens = min(self.burst, bucket.tokens + (now - bucket.filled) * self.per_second)
        bucket.filled = now
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1:
            wait = math.ceil((1 - bucket.tokens) / self.per_second)
            raise Problem(429, "too many requests; send fewer", headers={"Retry-After": str(wait)})
        bucket.tokens -= 1
