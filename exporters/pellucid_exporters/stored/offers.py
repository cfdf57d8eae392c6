"""Reasons why one request offered a tool or not, from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.reasons import reasons_of
from pellucid_exporters.stored.rows import EventRow, SpanRow

DISCOVERING: Final = frozenset({"tool_search", "__lazy__tool__discovery__"})
"""Tools with which a model activates lazy ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool that a provider listed for a request, or that the request offered.

    Attributes:
        provider_id: Provider that listed it; `None` if no discovery on record did.
        is_offered: `None` if the store does not say, because the definitions of the request were cut.
        reason: Why it was not offered, or what happened to it before it was; empty if there is nothing to say.
    """

    name: str
    provider_id: str | None
    description: str
    is_offered: bool | None
    reason: str = ""


def tool_offers(content: RunContent, events: Sequence[EventRow], span: SpanRow) -> list[ToolOffer]:
    """Return the tools of the iteration of a `compose_request` or `chat` span, the withheld ones first.

    Empty if the store holds neither catalogues nor definitions of tools of that iteration.
    """
    offered, is_whole = _offered(content, span)
    if offered is None:
        return []
    reasons = reasons_of(events, span)
    is_lazy = bool(DISCOVERING & offered.keys())
    offers: list[ToolOffer] = []
    for provider_id, item in content.listed(span):
        name = str(item.get("name"))
        key = (name, provider_id)
        is_offered: bool | None = name in offered and key not in reasons.shadowed
        reason = reasons.by_tool.get(key, "")
        if not is_offered:
            reason = reasons.denied.get(key) or reason
        if not is_offered and not reason:
            is_offered = False if is_whole else None
            reason = "lazy: the model had not activated it" if is_lazy else _UNKNOWN[is_whole]
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
        for (name, provider_id), problem in reasons.unlisted.items()
        if (name, provider_id) not in valid
    ]
    return sorted(offers, key=lambda offer: _ORDER[offer.is_offered])


_ORDER: Final = {False: 0, None: 1, True: 2}
_UNKNOWN: Final = {
    True: "the store does not say why",
    False: "the definitions of this request were cut; the store does not say whether this one was among them",
}


def _offered(content: RunContent, span: SpanRow) -> tuple[dict[str, str] | None, bool]:
    """Return the descriptions of the tools that the request offered, by name, and whether they are all.

    `None` if they are not recorded.
    """
    same = [other for other in content.spans if other.iteration == span.iteration]
    call = next((other for other in same if other.phase == semconv.INFERENCE), None)
    composed = next((other for other in same if other.phase == semconv.COMPOSE), None)
    if composed is not None and composed.attributes.get(semconv.COMPOSE_TOOLS) == 0:
        return {}, True
    offered = content.offered(call) if call is not None else None
    if offered is not None and offered.definitions is not None:
        items = [item for item in offered.definitions if isinstance(item, dict) and "name" in item]
        return {str(item["name"]): str(item.get("description") or "") for item in items}, not offered.missing
    output = content.get(composed, semconv.OUTPUT) if composed is not None else None
    if output is None or not isinstance(output.value, dict) or not isinstance(output.value.get("tools"), list):
        return None, False
    names = dict.fromkeys(map(str, output.value["tools"]), "")
    return names, len(names) == output.value.get("tool_count")
