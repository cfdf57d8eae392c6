"""Events of a run as JSON: names in camelCase, as in the rest of the API, and the choice of what a client may see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Final, Literal, TypeAlias

from pydantic.alias_generators import to_camel

from pellucid.durable.states.bodies import usage_json
from pellucid.errors import ConfigError
from pellucid.events import Event, InferenceDelta
from pellucid.messages import Usage
from pellucid.types import JSONObject

Select: TypeAlias = Literal["public", "all"] | Collection[str] | Callable[[Event], bool]
"""Events that a client gets: those for end users, all, those of these names, or those that a function accepts."""

_SHOWN: Final = frozenset(
    {
        "approval_id",
        "content",
        "expires_at",
        "is_final",
        "iteration",
        "outcome",
        "run_id",
        "time",
        "tool_call_id",
        "tool_name",
        "type",
    }
)
"""Fields that end users may see, of the events that they get."""

_PUBLIC: Final = frozenset(
    {
        "approval.decided",
        "approval.requested",
        "inference.delta",
        "output.rejected",
        "run.started",
        "tool.completed",
        "tool.failed",
        "tool.started",
    }
)
_WORDS: Final = ("public", "all")
_REMEDY: Final = (
    'give "public", "all", a set of the names of events such as {"tool.started"}, or a function of the event'
)
_PUBLIC_STATE: Final = ("id", "status", "output", "stopReason", "traceId")
_PUBLIC_APPROVAL: Final = ("approvalId", "toolCallId", "toolName", "expiresAt")


class EventView:
    """View of a run that a client gets.

    Args:
        select: See `Select`.

    Raises:
        ConfigError: `select` is something else, or has names that no event has.
    """

    def __init__(self, select: Select = "all") -> None:
        self._select = select
        if callable(select) or (isinstance(select, str) and select in _WORDS):
            return
        if isinstance(select, str) or not isinstance(select, Collection):
            raise ConfigError(f"EventStreamResponse(select={select!r}): {_REMEDY}")
        names = {kind.name for kind in Event.__subclasses__()} | {"run"}
        if unknown := [name for name in select if name not in names]:
            raise ConfigError(f"EventStreamResponse(select=...): there is no event {unknown[0]!r}; {_REMEDY}")

    def event(self, event: Event) -> JSONObject | None:
        """Return an event as the client gets it; None if it does not."""
        if self._select == "public":
            is_shown = event.name in _PUBLIC and not (isinstance(event, InferenceDelta) and event.type != "text")
            return event_json(event, _SHOWN) if is_shown else None
        if callable(self._select):
            return event_json(event) if self._select(event) else None
        return event_json(event) if self._select == "all" or event.name in self._select else None

    def state(self, state: JSONObject) -> JSONObject:
        """Return the state at the end as the client gets it, whole if all or `run` is selected."""
        if self._select == "all" or (isinstance(self._select, Collection) and "run" in self._select):
            return state
        shown: JSONObject = {name: state[name] for name in _PUBLIC_STATE if name in state}
        if state["status"] == "failed":
            shown["error"] = {"type": "failed", "message": "the run has failed"}
        elif state["status"] == "cancelled":
            shown["error"] = {"type": "cancelled", "message": "the run was cancelled"}
        if approvals := state.get("approvals"):
            shown["approvals"] = [{name: approval[name] for name in _PUBLIC_APPROVAL} for approval in approvals]
        return shown


def event_json(event: Event, names: Collection[str] | None = None) -> JSONObject:
    """Return the fields of an event, or those of some names; never the identity."""
    return {
        api_name(field.name): _value(getattr(event, field.name))
        for field in fields(event)
        if field.name != "identity" and (names is None or field.name in names)
    }


def api_name(name: str) -> str:
    """Return the name of a field of an event in the API."""
    return _NAMES.get(name) or to_camel(name)


_NAMES: Final[Mapping[str, str]] = {"arguments": "input", "tool": "toolName"}
"""Names that the API does not take from the code."""


def _value(value: Any) -> Any:
    return usage_json(value) if isinstance(value, Usage) else value
