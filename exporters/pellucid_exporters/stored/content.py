"""Recorded content of spans: texts by digest, JSON, and the request of a model call, rebuilt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.offered_tools import OfferedTools, rebuilt
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.reasons import Reasons, reasons_of
from pellucid_exporters.stored.rows import BODY, EventRow, SpanRow, count_of

MOST_PARSED: Final = 4_000_000
"""Characters of JSON that are parsed for a page; longer content is shown as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Content of one attribute.

    Attributes:
        sequence: Number of the span that has it.
        attribute: Its name.
        text: The text as recorded.
        value: The JSON value; the text itself if it is not JSON, or too long.
    """

    sequence: int
    attribute: str
    text: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message of a request.

    Attributes:
        message: The message; `None` stands for messages that were not recorded.
        missing: Number of those.
        sequence: Number of the span that has the message.
        attribute: Attribute of that span.
        is_new: Whether the previous model call had not yet sent it.
    """

    message: Mapping[str, Any] | None
    sequence: int
    attribute: str = semconv.INPUT_MESSAGES
    missing: int = 0
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """Request of a model call, with the parts that earlier spans of the run have recorded."""

    instructions: Recorded | None
    messages: Sequence[SentMessage]
    offered: OfferedTools
    is_recorded: bool

    @property
    def missing(self) -> int:
        """Number of messages that were not recorded."""
        return sum(message.missing for message in self.messages)


class RunContent:
    """Content of the spans of one run, read from the store when it is needed."""

    def __init__(self, reader: Recording, spans: Sequence[SpanRow]) -> None:
        self.spans = spans
        self._reader = reader
        self._by_id = {span.span_id: span for span in spans}
        self._texts: dict[str, str] = {}
        self._messages: dict[str, Recorded] = {}
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
        digests = {value[BODY] for value in references} - self._texts.keys()
        if digests:
            self._texts.update(self._reader.bodies(digests))

    def whole(self, value: Any) -> Any:
        """Return a value with its large texts in place, such as the attributes of an event."""
        digests = set(digests_in(value)) - self._texts.keys()
        if digests:
            self._texts.update(self._reader.bodies(digests))
        return filled(value, self._texts)

    def text(self, span: SpanRow, attribute: str) -> str | None:
        """Return the text of an attribute; `None` if the span has none or the store no longer has it."""
        value = span.attributes.get(attribute)
        if value is None:
            return None
        if isinstance(value, Mapping) and BODY in value:
            self.load([span], [attribute])
            return self._texts.get(value[BODY])
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
        self.load(chain, [semconv.INPUT_MESSAGES])
        messages: list[SentMessage] = []
        for index, link in enumerate(chain):
            repeated = count_of(link.attributes, semconv.CONTENT_REPEATED) or 0
            following = chain[index + 1] if index + 1 < len(chain) else None
            messages = _first(messages, repeated, link.sequence)
            own = self._sent(link)
            recorded = own.value if own is not None and isinstance(own.value, list) else []
            total = count_of(following.attributes, semconv.CONTENT_REPEATED) if following is not None else None
            omitted = self._omitted_messages(link) if total is None else total - repeated - len(recorded)
            messages += _gap(omitted, link.sequence)
            messages += [
                SentMessage(message=message, sequence=link.sequence, is_new=link is span)
                for message in recorded
                if isinstance(message, dict)
            ]
        return SentRequest(
            instructions=self._latest(span, semconv.SYSTEM_INSTRUCTIONS),
            messages=messages,
            offered=self.offered(span),
            is_recorded=semconv.INPUT_MESSAGES in span.attributes,
        )

    def _sent(self, span: SpanRow) -> Recorded | None:
        """Return the messages that a model call recorded, parsed once for all calls that repeat them, without text."""
        if span.span_id not in self._messages and (recorded := self.get(span, semconv.INPUT_MESSAGES)) is not None:
            self._messages[span.span_id] = replace(recorded, text="")
        return self._messages.get(span.span_id)

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


def _first(messages: list[SentMessage], number: int, sequence: int) -> list[SentMessage]:
    """Return the first messages; those that the chain lacks are counted."""
    kept: list[SentMessage] = []
    remaining = number
    for message in messages:
        weight = message.missing or 1
        if weight > remaining:
            break
        kept.append(message)
        remaining -= weight
    return kept + _gap(remaining, sequence)


def _gap(missing: int, sequence: int) -> list[SentMessage]:
    return [SentMessage(message=None, sequence=sequence, missing=missing)] if missing > 0 else []
