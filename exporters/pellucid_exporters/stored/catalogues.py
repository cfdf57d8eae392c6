"""Changes of a hub's catalogue: which tools came, went or were redefined, and what was hidden in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid import semconv
from pellucid.events import ToolsCatalogChanged, ToolsHiddenText
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.differences import Difference, by_key
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import EventRow, SpanRow, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueChange:
    """A catalogue that differs from the one before.

    Attributes:
        run_id, span_id: Discovery that listed the new catalogue; the run is empty for a refresh in the background.
        digest: Digest of the new catalogue; the previous one if only what models do not get differs.
        previous_digest: Digest of the one before.
        added, removed: Names of tools.
        changed: Differences in tools of both, by name.
        is_known: Whether both catalogues are recorded.
    """

    time: int
    run_id: str
    span_id: str | None
    digest: str
    previous_digest: str
    tool_count: int | None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Difference, ...] = ()
    is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTextReport:
    """A text of a tool with characters that people do not see.

    Attributes:
        time, run_id, span_id: Discovery that first listed it; the run is empty for a refresh in the background.
        place: Where the text is: `name`, `description`, or a place in a schema.
        text: The text with these characters escaped; None if it is not recorded.
        is_removed: Whether the model gets the text without them.
    """

    time: int
    run_id: str
    span_id: str | None
    tool_name: str
    place: str
    text: str | None
    is_removed: bool


def catalogue_changes(
    reader: Reader, provider_id: str, since: int, until: int, limit: int = 20
) -> list[CatalogueChange]:
    """Return the latest changes of a hub's catalogue in a window of time, the newest first."""
    events = reader.events_named(ToolsCatalogChanged.name, since, until)
    own = [event for event in events if event.payload.get("provider_id") == provider_id][:limit]
    digests = {str(event.payload.get(name)) for event in own for name in ("digest", "previous_digest")}
    tools = {digest: _by_name(catalog) for digest, catalog in reader.catalogs(digests).items()}
    return [_change(event, tools) for event in own]


def hidden_texts(reader: Reader, provider_id: str, since: int, until: int, limit: int = 100) -> list[HiddenTextReport]:
    """Return the hidden texts that a hub listed in a window of time, each once, the newest first."""
    first: dict[str, EventRow] = {}
    for event in reader.events_named(ToolsHiddenText.name, since, until):
        if event.payload.get("provider_id") == provider_id:
            first[str([event.payload.get(name) for name in ("tool_name", "place", "text", "removed")])] = event
    found = sorted(first.values(), key=lambda event: event.time, reverse=True)[:limit]
    texts = reader.bodies(set(digests_in([event.payload for event in found])))
    return [_hidden_text(event, filled(event.payload, texts)) for event in found]


def latest_catalogue(reader: Reader, provider_id: str, before: int) -> tuple[SpanRow, list[Any]] | None:
    """Return the tools that the last run before a time got from a hub, if recorded, with the discovery."""
    for run in reader.runs(hub=provider_id, before=before, limit=1):
        for span in reversed(reader.spans(run.run_id)):
            if span.phase == semconv.DISCOVERY and span.attributes.get(semconv.PROVIDER_ID) == provider_id:
                digest = str(span.attributes.get(semconv.CATALOG_DIGEST))
                catalog = reader.catalogs([digest]).get(digest)
                if catalog is not None:
                    return span, list(catalog["tools"])
    return None


def _hidden_text(event: EventRow, payload: Mapping[str, Any]) -> HiddenTextReport:
    return HiddenTextReport(
        time=event.time,
        run_id=event.run_id,
        span_id=event.span_id,
        tool_name=text_of(payload, "tool_name") or "",
        place=text_of(payload, "place") or "",
        text=text_of(payload, "text"),
        is_removed=payload.get("removed") is True,
    )


def _change(event: EventRow, tools: Mapping[str, Mapping[str, Any]]) -> CatalogueChange:
    digest, previous = str(event.payload.get("digest")), str(event.payload.get("previous_digest"))
    found: dict[str, Any] = {}
    if digest in tools and previous in tools:
        old, new = tools[previous], tools[digest]
        changed = [name for name in new if name in old and old[name] != new[name]]
        found = {
            "added": tuple(name for name in new if name not in old),
            "removed": tuple(name for name in old if name not in new),
            "changed": tuple(Difference(name, list(by_key(old[name], new[name]))) for name in changed),
            "is_known": True,
        }
    return CatalogueChange(
        time=event.time,
        run_id=event.run_id,
        span_id=event.span_id,
        digest=digest,
        previous_digest=previous,
        tool_count=event.payload.get("tool_count"),
        **found,
    )


def _by_name(catalog: Mapping[str, Any]) -> Mapping[str, Any]:
    return {str(tool.get("name")): tool for tool in catalog["tools"]}
