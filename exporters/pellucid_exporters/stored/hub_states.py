"""State of a hub in one word."""

from __future__ import annotations

from typing import Final

from pellucid_exporters.stored.rows import HubRow

STATES: Final = ("hangs", "slow", "fails", "ok")
"""States of hubs, the worst first."""

TOLERANCE: Final = 0.01
"""Share of round trips that may be over the objective."""

_OBJECTIVES: Final = 10
_SECONDS: Final = 10.0


def state_of(hub: HubRow, oldest: int | None, now: int) -> str:
    """Return the state of a hub; a discovery hangs beyond ten times the objective, or 10 s without one.

    Args:
        hub: The hub in a window of time.
        oldest: Start of its oldest discovery in flight.
        now: Time in nanoseconds since the epoch.
    """
    limit = hub.objective * _OBJECTIVES if hub.objective is not None else _SECONDS
    if oldest is not None and (now - oldest) / 1e9 > limit:
        return "hangs"
    share = over(hub)
    if share is not None and share > TOLERANCE:
        return "slow"
    return "fails" if hub.failures else "ok"


def over(hub: HubRow) -> float | None:
    """Return the share of round trips that took longer than the objective that the hub had then."""
    return sum(hub.late.values()) / hub.calls if hub.objective is not None and hub.calls else None
