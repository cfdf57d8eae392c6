"""Recorded content of spans: texts by digest, JSON, and the request of a model call, rebuilt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pellucid import semconv
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.offered_tools import OfferedTools, rebuilt
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.reasons import Reasons, reasons_of
from pellucid_exporters.stored.rows import BODY, EventRow, SpanRow, count_of
from pellucid_exporters.stored.sent_messages import Recorded, SentMessage, SentRequest, first, gap

MOST_PARSED: Final = 4_000_000
"""Characters of JSON that are parsed for a page; longer content is shown as text."""

_V = TypeVar("_V")

_AT_ONCE: Final = 50
"""Model calls whose messages are read at once to be counted."""


class _Kept(Generic[_V]):
    """Values by key, all of which are forgotten when they are larger than a limit together.

    Args:
        most: Characters of the values, which may be exceeded until the next `make_room`.
    """

    def __init__(self, most: int) -> None:
        self.values: dict[str, _V] = {}
        self._most, self._size = most, 0

    def make_room(self) -> None:
        """Forget all if the limit is exceeded."""
        if self._size > self._most:
            self.values, self._size = {}, 0

    def add(self, key: str, value: _V, size: int) -> None:
        """Keep a value that is not kept."""
        self.values[key] = value
        self._size += size


class RunContent:
    """Content of the spans of one run, read from the store when it is needed.

    Args:
        reader: Reader of the store.
        spans: Spans of the run.
        most: Characters of texts, and of messages that are parsed, that stay in memory to be read again.
    """

    def __init__(self, reader: Recording, spans: Sequence[SpanRow], most: int = 50_000_000) -> None:
        self.spans = spans
        self._reader = reader
        self._by_id = {span.span_id: span for span in spans}
        self._texts = _Kept[str](most)
        self._parsed = _Kept[Sequence[Any]](most)
        self._places: dict[str, tuple[int, Sequence[int]]] = {}
        self._catalogs: dict[str, Mapping[str, Any]] = {}
        self._events: Sequence[EventRow] | None = None

    def span(self, span_id: object) -> SpanRow | None:
        """Return the span with an id; `None` for what is none."""
        return self._by_id.get(span_id) if isinstance(span_id, str) else None

    def load(self, spans: Iterable[SpanRow], attributes: Iterable[str]) -> None:
        """Read the large texts of several spans at once."""
        names = tuple(attributes)
        values = (span.attributes.get(name) for span in spans for name in names)
        references = [value for value in values if isinstance(value, Mapping) and BODY in value]
        self._fetch({value[BODY] for value in references})

    def whole(self, value: Any) -> Any:
        """Return a value with its large texts in place, such as the attributes of an event."""
        self._fetch(set(digests_in(value)))
        return filled(value, self._texts.values)

    def _fetch(self, digests: set[str]) -> None:
        if digests <= self._texts.values.keys():
            return
        self._texts.make_room()
        for digest, text in self._reader.bodies(digests - self._texts.values.keys()).items():
            self._texts.add(digest, text, len(text))

    def text(self, span: SpanRow, attribute: str) -> str | None:
        """Return the text of an attribute; `None` if the span has none or the store no longer has it."""
        value = span.attributes.get(attribute)
        if value is None:
            return None
        if isinstance(value, Mapping) and BODY in value:
            self.load([span], [attribute])
            return self._texts.values.get(value[BODY])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def get(self, span: SpanRow, attribute: str) -> Recorded | None:
        """Return recorded content; a reference to an earlier span is followed."""
        text = self.text(span, attribute)
        if text is None:
            return None
        value = parse(text)
        if isinstance(value, dict) and value.keys() == {"recorded_on"}:
            holder = self.span(value["recorded_on"])
            if holder is not None and holder.sequence < span.sequence:
                return self.get(holder, attribute)
        return Recorded(sequence=span.sequence, attribute=attribute, text=text, value=value)

    def tools(self, span: SpanRow) -> list[Any] | None:
        """Return the tools that a discovery listed: with their schemas, if the whole catalogue is recorded."""
        digest = span.attributes.get(semconv.CATALOG_DIGEST)
        if isinstance(digest, str):
            if digest not in self._catalogs:
                self._catalogs.update(self._reader.catalogs([digest]))
            if digest in self._catalogs:
                return list(self._catalogs[digest]["tools"])
        recorded = self.get(span, semconv.OUTPUT)
        return recorded.value if recorded is not None and isinstance(recorded.value, list) else None

    def request(self, span: SpanRow) -> SentRequest:
        """Rebuild what a model call sent."""
        chain = self._chain(span)
        self._count([link for link in chain if link.span_id not in self._places])
        messages: list[SentMessage] = []
        for link, following in zip(chain, [*chain[1:], None], strict=True):
            repeated = count_of(link.attributes, semconv.CONTENT_REPEATED) or 0
            messages = first(messages, repeated, link.sequence)
            recorded, places = self._places[link.span_id]
            total = count_of(following.attributes, semconv.CONTENT_REPEATED) if following is not None else None
            messages += gap(
                self._omitted_messages(link) if total is None else total - repeated - recorded, link.sequence
            )
            load = partial(self._sent, link)
            messages += [
                SentMessage(sequence=link.sequence, is_new=link is span, place=place, load=load) for place in places
            ]
        return SentRequest(
            instructions=self._latest(span, semconv.SYSTEM_INSTRUCTIONS),
            messages=messages,
            offered=self.offered(span),
            is_recorded=semconv.INPUT_MESSAGES in span.attributes,
        )

    def _count(self, calls: Sequence[SpanRow]) -> None:
        """Count the messages that model calls recorded: all, and the places of those that are objects."""
        for start in range(0, len(calls), _AT_ONCE):
            some = calls[start : start + _AT_ONCE]
            self.load(some, [semconv.INPUT_MESSAGES])
            for call in some:
                items = self._sent(call)
                places = [place for place, item in enumerate(items) if isinstance(item, dict)]
                self._places[call.span_id] = len(items), places

    def _sent(self, span: SpanRow) -> Sequence[Any]:
        """Return the messages that a model call recorded, parsed once for all calls that repeat them."""
        known = self._parsed.values.get(span.span_id)
        if known is None:
            found = self.get(span, semconv.INPUT_MESSAGES)
            known = found.value if found is not None and isinstance(found.value, list) else ()
            self._parsed.make_room()
            self._parsed.add(span.span_id, known, len(found.text) if found is not None else 0)
        return known

    def listed(self, span: SpanRow) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the tools that providers listed in the iteration of a span, each with the id of its provider.

        Providers are in the order of the agent, which is that of the tools in a request.
        """
        found = [
            (str(discovery.attributes.get(semconv.PROVIDER_ID)), item)
            for discovery in self.spans
            if discovery.phase == semconv.DISCOVERY and discovery.iteration == span.iteration
            for item in self.tools(discovery) or ()
            if isinstance(item, Mapping)
        ]
        places = {name: place for place, name in enumerate(self._providers())}
        return sorted(found, key=lambda item: places.get(item[0], len(places)))

    def _providers(self) -> Iterator[str]:
        """Yield the ids of the agent's providers."""
        for span in self.spans:
            recorded = self.get(span, semconv.AGENT_CONFIGURATION) if span.phase == semconv.RUN else None
            if recorded is not None and isinstance(recorded.value, dict):
                for provider in recorded.value.get("providers") or ():
                    yield str(provider.get("id")) if isinstance(provider, dict) else ""

    def offered(self, span: SpanRow) -> OfferedTools:
        """Return the tools that a model call offered; each catalogue's definitions are recorded once in a run."""
        found = self._definitions(span)
        recorded = found.value if found is not None and isinstance(found.value, list) else None
        composed = (other for other in self.spans if other.phase == semconv.COMPOSE)
        same = next((other for other in composed if other.iteration == span.iteration), None)
        number = count_of(same.attributes, semconv.COMPOSE_TOOLS) if same is not None else None
        definitions: Sequence[Any] | None = recorded
        if number and number > len(recorded or ()):
            reasons = self._reasons(span)
            definitions = rebuilt(self.listed(span), reasons, span.iteration or 0, number, recorded or ()) or recorded
        return OfferedTools(definitions=definitions, number=number, recorded=len(recorded or ()))

    def denied(self, span: SpanRow) -> dict[str, str]:
        """Return the tools that the policy denied in the iteration of a `compose_request` span, and why, by name."""
        if not span.attributes.get(semconv.COMPOSE_DENIED):
            return {}
        reasons = self._reasons(span)
        return {name: reasons.denied[name, by] for name, by in sorted(reasons.denied, key=str)}

    def _reasons(self, span: SpanRow) -> Reasons:
        if self._events is None:
            self._events = self._reader.events(span.run_id)
        return reasons_of(self._events, span)

    def _chain(self, span: SpanRow) -> list[SpanRow]:
        """Return the model calls that have recorded the messages of this one, in order, itself last."""
        chain = [span]
        while (holder := self.span(chain[-1].attributes.get(semconv.CONTENT_RECORDED_ON))) is not None:
            if holder.sequence >= chain[-1].sequence:
                break
            chain.append(holder)
        return chain[::-1]

    def _omitted_messages(self, span: SpanRow) -> int:
        """Return how many new messages of a model call were not recorded."""
        names = span.attributes.get(semconv.CONTENT_OMITTED_FROM)
        counts = span.attributes.get(semconv.CONTENT_OMITTED_COUNTS)
        if isinstance(names, list) and isinstance(counts, list):
            return int(dict(zip(names, counts, strict=False)).get(semconv.INPUT_MESSAGES, 0))
        omitted = count_of(span.attributes, semconv.CONTENT_OMITTED) or 0
        if omitted and semconv.TOOL_DEFINITIONS in span.attributes:  # older versions counted definitions, too
            offered = self.offered(span)
            omitted -= max(0, (offered.number or 0) - offered.recorded)
        return max(0, omitted)

    def _latest(self, span: SpanRow, attribute: str) -> Recorded | None:
        """Return the content of the last model call up to this one that has it; it is recorded when it changes."""
        holder = next((call for call in self._calls(span) if attribute in call.attributes), None)
        return self.get(holder, attribute) if holder is not None else None

    def _definitions(self, span: SpanRow) -> Recorded | None:
        """Return the definitions of the tools that a model call offered: each catalogue is recorded once in a run."""
        digest = span.attributes.get(semconv.CATALOG_DIGEST)
        for call in self._calls(span):
            is_same = call.attributes.get(semconv.CATALOG_DIGEST) == digest
            if is_same and semconv.TOOL_DEFINITIONS in call.attributes:
                return self.get(call, semconv.TOOL_DEFINITIONS)
        return None

    def _calls(self, span: SpanRow) -> Iterator[SpanRow]:
        """Yield the model calls up to this one, the latest first."""
        for call in reversed(self.spans):
            if call.phase == semconv.INFERENCE and call.sequence <= span.sequence:
                yield call


def parse(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON."""
    if len(text) > MOST_PARSED:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
