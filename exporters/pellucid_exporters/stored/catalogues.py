"""Changes of a hub's catalogue: which tools came, went or were redefined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pellucid import semconv
from pellucid.events import ToolsCatalogChanged
from pellucid_exporters.stored.comparison import Difference, difference
from pellucid_exporters.stored.content import Recorded, RunContent
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import EventRow, SpanRow

MOST_RUNS: Final = 20
"""Runs before a change in which the previous catalogue is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueChange:
    """A catalogue that differs from the one before.

    Attributes:
        run_id: Run that saw the change; empty for a refresh in the background.
        span: Discovery that listed the new catalogue.
        digest: Digest of the new catalogue.
        previous_digest: Digest of the one before.
        added, removed: Names of tools.
        changed: What differs in tools of both, by name.
        is_known: Whether both catalogues are recorded.
    """

    time: int
    run_id: str
    span: SpanRow | None
    digest: str
    previous_digest: str
    tool_count: int | None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Difference, ...] = ()
    is_known: bool = False


_Tools = Mapping[str, Any]


def catalogue_changes(
    reader: Reader, provider_id: str, since: int, until: int, limit: int = 20
) -> list[CatalogueChange]:
    """Return the latest changes of a hub's catalogue in a window of time, the newest first."""
    events = reader.events_named(ToolsCatalogChanged.name, since, until)
    runs = _Runs(reader, provider_id)
    own = [event for event in events if event.payload.get("provider_id") == provider_id]
    return [_change(runs, event) for event in own[:limit]]


def latest_catalogue(reader: Reader, provider_id: str, before: int) -> tuple[SpanRow, Recorded] | None:
    """Return the last recorded catalogue of a hub before a time, with the discovery that listed it."""
    for run in reader.runs(hub=provider_id, before=before, limit=MOST_RUNS):
        content = RunContent(reader, reader.spans(run.run_id))
        for span in reversed(content.spans):
            if span.phase == semconv.DISCOVERY and span.attributes.get(semconv.PROVIDER_ID) == provider_id:
                recorded = content.get(span, semconv.OUTPUT)
                if recorded is not None:
                    return span, recorded
    return None


def _change(runs: _Runs, event: EventRow) -> CatalogueChange:
    digest, previous = str(event.payload.get("digest")), str(event.payload.get("previous_digest"))
    after, before = runs.catalogue(digest, event), runs.catalogue(previous, event)
    found: dict[str, Any] = {}
    if before is not None and after is not None:
        old, new = before[1], after[1]
        found = {
            "added": tuple(name for name in new if name not in old),
            "removed": tuple(name for name in old if name not in new),
            "changed": tuple(
                Difference(name, difference(old[name], new[name]))
                for name in new
                if name in old and old[name] != new[name]
            ),
            "is_known": True,
        }
    return CatalogueChange(
        time=event.time,
        run_id=event.run_id,
        span=after[0] if after is not None else None,
        digest=digest,
        previous_digest=previous,
        tool_count=event.payload.get("tool_count"),
        **found,
    )


class _Runs:
    """Catalogues of one hub in its runs, each run read once."""

    def __init__(self, reader: Reader, provider_id: str) -> None:
        self._reader = reader
        self._provider_id = provider_id
        self._contents: dict[str, RunContent] = {}

    def catalogue(self, digest: str, event: EventRow) -> tuple[SpanRow, _Tools] | None:
        """Return a discovery of the run of an event, or of those before it, that listed a catalogue, and its tools."""
        earlier = self._reader.runs(hub=self._provider_id, before=event.time, limit=MOST_RUNS)
        names = dict.fromkeys([event.run_id, *(run.run_id for run in earlier)])
        for run_id in filter(None, names):
            content = self._content(run_id)
            for span in content.spans:
                if self._lists(span, digest) and (tools := _tools(content, span)) is not None:
                    return span, tools
        return None

    def _content(self, run_id: str) -> RunContent:
        if run_id not in self._contents:
            self._contents[run_id] = RunContent(self._reader, self._reader.spans(run_id))
        return self._contents[run_id]

    def _lists(self, span: SpanRow, digest: str) -> bool:
        attributes = span.attributes
        is_own = attributes.get(semconv.PROVIDER_ID) == self._provider_id
        return span.phase == semconv.DISCOVERY and is_own and attributes.get(semconv.CATALOG_DIGEST) == digest


def _tools(content: RunContent, span: SpanRow) -> _Tools | None:
    recorded = content.get(span, semconv.OUTPUT)
    if recorded is None or not isinstance(recorded.value, list):
        return None
    return {str(item["name"]): item for item in recorded.value if isinstance(item, dict) and "name" in item}
