"""Reasons that the events of a run give about its tools: denied, shadowed, quarantined, redefined, activated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from pellucid import semconv
from pellucid.events import (
    ToolDenied,
    ToolsActivated,
    ToolsDeactivated,
    ToolsHiddenText,
    ToolsQuarantined,
    ToolsRedefined,
    ToolsShadowed,
)
from pellucid_exporters.stored.rows import EventRow, SpanRow

Listed: TypeAlias = tuple[str, str | None]
"""Name of a tool, and id of the provider that listed it."""

_ROUNDING: Final = 1_000
"""Nanoseconds by which the time of an event, which is a float, may be off."""


class Reasons:
    """Reasons that the events of a run give about its tools, the latest last.

    Attributes:
        by_tool: Fault of a tool.
        denied: Why the policy denied a tool.
        shadowed: Tools whose name another tool has, with the name under which they are offered instead, if any.
        pinned: Tools that are withheld because they were redefined.
        unlisted: Why tools that a hub listed are not in its catalogue: broken, or other than the lock file says.
    """

    def __init__(self) -> None:
        self.by_tool: dict[Listed, str] = {}
        self.denied: dict[Listed, str] = {}
        self.denied_in: dict[int, set[Listed]] = {}
        self.shadowed: dict[Listed, str | None] = {}
        self.pinned: set[Listed] = set()
        self.unlisted: dict[Listed, str] = {}


def reasons_of(events: Sequence[EventRow], span: SpanRow) -> Reasons:
    """Return the reasons that were known when a `compose_request` span ended, or a `chat` span started."""
    reasons = Reasons()
    latest = span.start if span.phase == semconv.INFERENCE else span.end or span.start
    for event in events:
        if event.time > latest + _ROUNDING:
            break
        _add(reasons, event)
    return reasons


def _add(reasons: Reasons, event: EventRow) -> None:
    payload = event.payload
    key: Listed = (str(payload.get("tool_name")), payload.get("provider_id"))
    if event.name == ToolDenied.name and payload.get("stage") != "dispatch":
        why = payload.get("reason") or payload.get("error_type") or "without a reason"
        reasons.denied[key] = f"the policy says {payload.get('permission')}: {why}"
        reasons.denied_in.setdefault(payload.get("iteration", 0), set()).add(key)
    elif event.name == ToolsShadowed.name:
        key = (key[0], payload.get("shadowed_provider_id"))
        renamed = payload.get("offered_as")
        winner = f"'{payload.get('provider_id')}' has the name"
        reasons.by_tool[key] = f"{winner}; offered as {renamed}" if renamed else winner
        reasons.shadowed[key] = renamed
    elif event.name == ToolsQuarantined.name:
        reasons.unlisted[key] = f"quarantined: {payload.get('problem')}"
    elif event.name == ToolsHiddenText.name:
        reasons.by_tool.setdefault(key, f"hidden characters in its {payload.get('place')}: {payload.get('text')}")
    elif event.name == ToolsRedefined.name:
        reasons.by_tool[key] = _redefined(reasons, key, event)
    elif event.name == ToolsActivated.name:
        reasons.by_tool[key] = f"lazy, activated via {payload.get('via')}"
    elif event.name == ToolsDeactivated.name:
        reasons.by_tool[key] = f"lazy, no longer active: {payload.get('reason')}"


def _redefined(reasons: Reasons, key: Listed, event: EventRow) -> str:
    """Note whether a tool that was redefined is withheld, and return why."""
    payload, refused = event.payload, event.payload.get("refused")
    if payload.get("after") != "lock":
        if refused:
            reasons.pinned.add(key)
        return "redefined under its name" + (", withheld because tools are pinned" if refused else "")
    change = "differs from the lock file" if payload.get("previous_digest") else "not in the lock file"
    if refused:
        reasons.unlisted[key] = f"{change}, withheld"
    return change
