"""Why a model was offered a tool, or was not: what the store holds of one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid import semconv
from pellucid.events import (
    ToolDenied,
    ToolsActivated,
    ToolsDeactivated,
    ToolsQuarantined,
    ToolsRedefined,
    ToolsShadowed,
)
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import EventRow, SpanRow

DISCOVERING: Final = frozenset({"tool_search", "__lazy__tool__discovery__"})
"""Tools with which a model activates lazy ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool that a provider listed for a request, or that the request offered.

    Attributes:
        provider_id: Provider that listed it; `None` if no discovery on record did.
        reason: Why it was not offered, or what happened to it before it was; empty if there is nothing to say.
    """

    name: str
    provider_id: str | None
    description: str
    is_offered: bool
    reason: str = ""


def tool_offers(content: RunContent, events: Sequence[EventRow], span: SpanRow) -> list[ToolOffer]:
    """Return the tools of the iteration of a `compose_request` or `chat` span, the withheld ones first.

    Empty if the store holds neither catalogues nor definitions of tools of that iteration.
    """
    offered = _offered(content, span)
    if offered is None:
        return []
    reasons = _reasons(events, span)
    is_lazy = bool(DISCOVERING & offered.keys())
    offers: list[ToolOffer] = []
    for provider_id, item in _listed(content, span):
        name = str(item.get("name"))
        key = (name, provider_id)
        is_offered = name in offered and key not in reasons.shadowed
        reason = reasons.by_tool.get(key, "")
        if not is_offered:
            reason = reasons.denied.get(key) or reason
        if not is_offered and not reason:
            reason = "lazy: the model had not activated it" if is_lazy else "the store does not say why"
        description = str(item.get("description") or "")
        offers.append(
            ToolOffer(name=name, provider_id=provider_id, description=description, is_offered=is_offered, reason=reason)
        )
    listed = {offer.name for offer in offers}
    valid = {(offer.name, offer.provider_id) for offer in offers}
    offers += [
        ToolOffer(name=name, provider_id=None, description=description, is_offered=True)
        for name, description in offered.items()
        if name not in listed
    ]
    offers += [
        ToolOffer(name=name, provider_id=provider_id, description="", is_offered=False, reason=problem)
        for (name, provider_id), problem in reasons.quarantined.items()
        if (name, provider_id) not in valid
    ]
    return sorted(offers, key=lambda offer: offer.is_offered)


def _offered(content: RunContent, span: SpanRow) -> dict[str, str] | None:
    """Return the descriptions of the tools that the request offered, by name; `None` if they are not recorded."""
    same = [other for other in content.spans if other.iteration == span.iteration]
    call = next((other for other in same if other.phase == semconv.INFERENCE), None)
    composed = next((other for other in same if other.phase == semconv.COMPOSE), None)
    if composed is not None and composed.attributes.get(semconv.COMPOSE_TOOLS) == 0:
        return {}
    definitions = content.request(call).definitions if call is not None else None
    if definitions is not None and isinstance(definitions.value, list):
        items = [item for item in definitions.value if isinstance(item, dict) and "name" in item]
        return {str(item["name"]): str(item.get("description") or "") for item in items}
    output = content.get(composed, semconv.OUTPUT) if composed is not None else None
    if output is None or not isinstance(output.value, dict) or not isinstance(output.value.get("tools"), list):
        return None
    return dict.fromkeys(map(str, output.value["tools"]), "")


def _listed(content: RunContent, span: SpanRow) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tools that providers listed in the iteration, with the provider."""
    discoveries = [
        other for other in content.spans if other.phase == semconv.DISCOVERY and other.iteration == span.iteration
    ]
    for discovery in discoveries:
        for item in content.tools(discovery) or ():
            if isinstance(item, Mapping):
                yield str(discovery.attributes.get(semconv.PROVIDER_ID)), item


class _Reasons:
    """Reasons that the events of a run give about its tools, the latest last."""

    def __init__(self) -> None:
        self.by_tool: dict[tuple[str, str | None], str] = {}
        self.denied: dict[tuple[str, str | None], str] = {}
        self.shadowed: set[tuple[str, str | None]] = set()
        self.quarantined: dict[tuple[str, str | None], str] = {}


def _reasons(events: Sequence[EventRow], span: SpanRow) -> _Reasons:
    reasons = _Reasons()
    latest = span.start if span.phase == semconv.INFERENCE else span.end or span.start
    for event in events:
        payload = event.payload
        key: tuple[str, str | None] = (str(payload.get("tool_name")), payload.get("provider_id"))
        if event.time > latest + _ROUNDING:
            break
        if event.name == ToolDenied.name and payload.get("stage") != "dispatch":
            why = payload.get("reason") or payload.get("error_type") or "without a reason"
            reasons.denied[key] = f"the policy says {payload.get('permission')}: {why}"
        elif event.name == ToolsShadowed.name:
            key = (key[0], payload.get("shadowed_provider_id"))
            renamed = payload.get("offered_as")
            winner = f"'{payload.get('provider_id')}' has the name"
            reasons.by_tool[key] = f"{winner}; offered as {renamed}" if renamed else winner
            reasons.shadowed.add(key)
        elif event.name == ToolsQuarantined.name:
            reasons.quarantined[key] = f"quarantined: {payload.get('problem')}"
        elif event.name == ToolsRedefined.name:
            change = "redefined under its name"
            reasons.by_tool[key] = f"{change}, withheld because tools are pinned" if payload.get("refused") else change
        elif event.name == ToolsActivated.name:
            reasons.by_tool[key] = f"lazy, activated via {payload.get('via')}"
        elif event.name == ToolsDeactivated.name:
            reasons.by_tool[key] = f"lazy, no longer active: {payload.get('reason')}"
    return reasons


_ROUNDING: Final = 1_000
"""Nanoseconds by which the time of an event, which is a float, may be off."""
