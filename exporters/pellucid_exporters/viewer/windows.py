"""A window of time up to now, or up to the time in the address, and the period before it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pellucid_exporters.viewer.pages import whole

RANGES: Final = {"1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
"""Windows by their name in the address, in seconds."""


@dataclass(frozen=True, slots=True)
class Range:
    """A window of time.

    Attributes:
        name: Key of `RANGES`.
        end: Its end in the address; None for now.
        since, until: Its times, the latter exclusive.
        before: Start of the period before, which is as long.
    """

    name: str
    end: int | None
    since: int
    until: int
    before: int

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of an address that has the same window."""
        return {"range": self.name, "until": self.end}


def range_of(request: Request, default: str = "24h") -> Range:
    """Return the window of an address.

    Raises:
        HTTPException: 400, there is no such window.
    """
    name = request.query_params.get("range") or default
    if name not in RANGES:
        raise HTTPException(400, f"The range must be one of {', '.join(RANGES)}.")
    end = whole(request.query_params.get("until"))
    until = end if end is not None else time.time_ns() + 1
    length = RANGES[name] * 10**9
    return Range(name, end, max(0, until - length), until, max(0, until - 2 * length))
