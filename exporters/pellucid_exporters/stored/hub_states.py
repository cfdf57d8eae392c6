"""State of a hub in one word."""

from __future__ import annotations

from typing import Final

from pellucid_exporters.stored.rows import HubRow

STATES: Final = ("hangs", "slow", "fails", "ok")
"""States of hubs, the worst first."""

TOLERANCE: Final = 0.01
"""Share of requests that may be over the objective unless the hub declares one, or be delayed by a busy process."""

_OBJECTIVES: Final = 10
_SECONDS: Final = 10.0


def state_of(hub: HubRow, oldest: int | None, now: int) -> str:
    """Return the state of a hub.

    It hangs if a discovery has been in flight for ten times the objective, or 10 s without one, or if none of the
    latest requests was answered.

    Args:
        hub: The hub in a window of time.
        oldest: Start of its oldest discovery in flight.
        now: Time in nanoseconds since the epoch.
    """
    limit = hub.objective * _OBJECTIVES if hub.objective is not None else _SECONDS
    is_stuck = oldest is not None and (now - oldest) / 1e9 > limit
    if is_stuck or hub.unanswered_since is not None:
        return "hangs"
    share = over(hub)
    if share is not None and share > hub.budget(TOLERANCE):
        return "slow"
    return "fails" if hub.failures else "ok"


def over(hub: HubRow) -> float | None:
    """Return the share of requests over the objective that the hub had then, less the delay of a busy process."""
    return sum(hub.late.values()) / hub.calls if hub.objective is not None and hub.calls else None


def is_delayed(hub: HubRow) -> bool:
    """Return whether the durations of a hub are those of a busy process, rather than its own."""
    return hub.delayed > TOLERANCE * hub.calls


def severity_of(hub: HubRow, state: str) -> tuple[int, float, float, str]:
    """Return a key by which hubs are sorted, the worst first."""
    p95 = hub.p95.seconds if hub.p95 is not None else 0
    return STATES.index(state), -(over(hub) or 0), -p95, hub.provider_id
