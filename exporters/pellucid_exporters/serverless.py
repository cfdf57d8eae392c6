"""Telemetry of functions that are frozen between invocations, such as those of AWS Lambda.

```python
telemetry = configure("orders")

@flush_after(telemetry)
def handler(event, context): ...
```
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid_exporters.telemetry import Telemetry

_P = ParamSpec("_P")
_R = TypeVar("_R")

_log: Final = logging.getLogger(__name__)


def flush_after(
    telemetry: Telemetry, *, timeout: float = 5.0, margin: float = 0.5
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a handler so that its telemetry is sent before it returns or raises.

    A function that was frozen sends nothing until its next invocation, and nothing at all if there is none. What does
    not arrive in time is logged as a warning, and sent during the next invocation.

    Args:
        telemetry: Result of `configure()`.
        timeout: Seconds that sending may take at most.
        margin: Seconds to leave of the time that the invocation has left, which
            `context.get_remaining_time_in_millis()` of AWS Lambda says; without that, `timeout` alone counts.
    """

    def decorate(handler: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(handler)
        def flushed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return handler(*args, **kwargs)
            finally:
                remaining = _remaining([*args, *kwargs.values()])
                seconds = timeout if remaining is None else min(timeout, max(0.0, remaining - margin))
                if not telemetry.flush(seconds):
                    _log.warning("telemetry of an invocation did not arrive within %.3g s", seconds)

        return flushed

    return decorate


def _remaining(arguments: list[Any]) -> float | None:
    """Return the seconds that an invocation has left; None if no argument says it."""
    for argument in arguments:
        if callable(remaining := getattr(argument, "get_remaining_time_in_millis", None)):
            return float(remaining()) / 1000
    return None
