"""Recording of content: redacted, bounded and valid JSON, with a digest and a size.

Content that a run has recorded is not recorded again: later spans refer to the span that has it. The cost, in bytes and
in time, is that of the new content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import attrgetter, is_
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.trace import Span, format_span_id
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.messages import Message, ToolDefinition
from pellucid.telemetry.capture import CapturePolicy, Redactor, mask_secret_keys
from pellucid.telemetry.sanitize import MARGIN, Cleaner, bounded, dumps, size_of
from pellucid.types import JSONValue

FINISH = 64
"""Bytes reserved for the finish reason of an answer."""

HISTORY = 16
"""Messages of a conversation above which a run looks for what other runs have recorded of it."""

MAX_LABEL = 1024
"""Maximum characters of a description, such as that of a tool."""

MOST_LABELS = 1024


class CapturedValue(NamedTuple):
    """Recording of one value.

    Attributes:
        json: Redacted and bounded JSON; None if the policy records no content.
        digest: Hash of the redacted JSON; for a conversation, of all its messages.
        size: Bytes of the redacted JSON, plus the characters removed by its bounds.
        omitted: Number of messages or items omitted because of bounds.
        repeated: Number of messages before those in `json`, which earlier spans have.
        recorded_on: Id of the span that has the last of the repeated messages.
    """

    json: str | None
    digest: str
    size: int
    omitted: int = 0
    repeated: int = 0
    recorded_on: str | None = None

    def within(self, limit: int) -> CapturedValue:
        """Return the recording with its JSON shortened to `limit` bytes."""
        if self.json is None or size_of(self.json) <= limit:
            return self
        shorter, omitted = bounded(self.json, limit)
        return self._replace(json=shorter, omitted=self.omitted + omitted)


class _Fragment(NamedTuple):
    """Captured message; it holds a reference to the message, so that the message's id is not reused."""

    message: Message
    json: str
    digest: bytes
    size: int


_MESSAGE: Final = attrgetter("message")


class _Chain:
    """Growing conversation: the JSON of each message, and a digest and size that are updated with each new message.

    Attributes:
        fragments: The recorded messages.
        digest: Hash of the conversation.
        size: Bytes of the conversation.
        recorded: Number of messages that `new_messages` has recorded.
        recorded_on: Id of the span that has the last of them.
    """

    def __init__(self) -> None:
        self.fragments: list[_Fragment] = []
        self.digest = b""
        self.size = 2
        self.recorded = 0
        self.recorded_on: str | None = None

    def continues(self, messages: Sequence[Message]) -> bool:
        """Return whether `messages` start with the messages of the chain; a request that is cut has others."""
        return len(self.fragments) <= len(messages) and all(map(is_, map(_MESSAGE, self.fragments), messages))

    def add(self, fragment: _Fragment) -> None:
        self.fragments.append(fragment)
        self.digest = blake2b(self.digest + fragment.digest, digest_size=16).digest()
        self.size += fragment.size + 1

    def last(self, first: int, limit: int) -> tuple[str, int]:
        """Return the JSON of the last messages from `first` on that fit into `limit` bytes, and the number omitted."""
        new = self.fragments[first:]
        text = f"[{','.join([fragment.json for fragment in new])}]"
        if size_of(text) <= limit:
            return text, 0
        size, omitted = 2, len(new)
        for fragment in reversed(new):
            size += size_of(fragment.json) + 1
            if size > limit and omitted < len(new):
                break
            omitted -= 1
        return f"[{','.join([fragment.json for fragment in new[omitted:]])}]", omitted


class Capturer:
    """Capturer of the content of one run under one policy.

    Attributes:
        policy: Capture policy.
    """

    def __init__(self, policy: CapturePolicy) -> None:
        self.policy = policy
        self._redactors = policy.redactors if policy.mode != "full" else ()
        self._fragments: dict[int, _Fragment] = {}
        self._chain = _Chain()
        self._latest: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self._labels: dict[str, str | None] = {}

    def value(self, value: JSONValue) -> CapturedValue:
        """Record any value."""
        return self._recorded(*self._encode(value, self._redactors))

    def facts(self, value: JSONValue) -> CapturedValue:
        """Record a value created by Pellucid, which is valid JSON without secrets."""
        return self._recorded(dumps(value))

    def clean(self, value: JSONValue) -> JSONValue:
        """Return `value` redacted and bounded; None if the policy records no content."""
        if not self.policy.content:
            return None
        return json.loads(bounded(self._encode(value, self._redactors)[0], self.policy.max_bytes)[0])

    def text(self, text: str, limit: int | None = None) -> str | None:
        """Return a text, such as an error message, redacted and bounded; None if the policy records no content."""
        if not self.policy.content:
            return None
        length = self.policy.max_bytes if limit is None else min(limit, self.policy.max_bytes)
        redacted = Cleaner(self._redactors, length).redact(text[: length + MARGIN])
        return redacted[:length] if isinstance(redacted, str) else None

    def label(self, text: str) -> str | None:
        """Return a short text as `text` does, cached for repeated use, such as a tool's description."""
        if text not in self._labels:
            if len(self._labels) >= MOST_LABELS:
                self._labels.clear()
            self._labels[text] = self.text(text, MAX_LABEL)
        return self._labels[text]

    def messages(self, messages: Sequence[Message]) -> CapturedValue:
        """Record a whole conversation; if it is too big, its oldest messages are omitted and counted."""
        if len(messages) > HISTORY:
            self._recall(messages)
        return self._since(self._follow(messages), 0)

    def new_messages(self, messages: Sequence[Message], span_id: str) -> CapturedValue:
        """Record the messages of a growing conversation that the previous call, on another span, has not recorded."""
        chain = self._follow(messages)
        recorded = self._since(chain, chain.recorded, chain.recorded_on)
        chain.recorded, chain.recorded_on = len(chain.fragments), span_id
        return recorded

    def digest(self, messages: Sequence[Message]) -> str:
        """Return the hash of a conversation."""
        return self._follow(messages).digest.hex()

    def answer(self, message: Message, finish_reason: str) -> CapturedValue:
        """Record a model's answer as output messages with the finish reason."""
        fragment = self._fragment(message)
        reason = "" if message.finish_reason else f',"finish_reason":{dumps(finish_reason)}'
        text = f"[{fragment.json[:-1]}{reason}}}]"
        return CapturedValue(
            json=text if self.policy.content else None, digest=fragment.digest.hex(), size=fragment.size
        )

    def definitions(self, definitions: Iterable[ToolDefinition]) -> CapturedValue:
        """Record tool definitions."""
        return self.schemas([definition.to_dict() for definition in definitions])

    def schemas(self, value: JSONValue) -> CapturedValue:
        """Record a value whose keys are words of schemas and options, so that redactors apply only to its values."""
        redactors = tuple(redactor for redactor in self._redactors if redactor is not mask_secret_keys)
        return self._recorded(*self._encode(value, redactors))

    def is_new(self, attribute: str, version: str) -> bool:
        """Return whether `version` differs from the last one recorded for an attribute, and mark it as recorded."""
        if self._latest.get(attribute) == version:
            return False
        self._latest[attribute] = version
        return True

    def mark(self) -> Callable[[], None]:
        """Return a function that resets the capturer to its current state, so that another span records again."""
        chain, latest = self._chain, self._latest.copy()
        recorded, recorded_on = chain.recorded, chain.recorded_on

        def reset() -> None:
            self._chain, self._latest = chain, latest
            chain.recorded, chain.recorded_on = recorded, recorded_on

        return reset

    def content(self, span: Span) -> Content:
        """Return the content of a span, which is empty."""
        return Content(self, span)

    def referring(self, recorded: CapturedValue, span_id: str) -> CapturedValue:
        """Return `recorded`, or a reference to the span of this run that has the same content."""
        holder = self._seen.setdefault(recorded.digest, span_id)
        return recorded if holder is span_id else recorded._replace(json=f'{{"recorded_on":"{holder}"}}')

    def _follow(self, messages: Sequence[Message]) -> _Chain:
        """Return the chain of `messages`: the current one if they continue it, else a new one."""
        if not self._chain.continues(messages):
            self._chain = _Chain()
        for message in messages[len(self._chain.fragments) :]:
            self._chain.add(self._fragment(message))
        return self._chain

    def _since(self, chain: _Chain, first: int, holder: str | None = None) -> CapturedValue:
        if not self.policy.content:
            return CapturedValue(None, chain.digest.hex(), chain.size)
        text, omitted = chain.last(first, self.policy.max_bytes)
        return CapturedValue(text, chain.digest.hex(), chain.size, omitted, first, holder)

    def _fragment(self, message: Message) -> _Fragment:
        fragment = self._fragments.get(id(message))
        if fragment is None:
            text, removed, _ = self._encode(message.to_dict(), self._redactors)
            data, limit = text.encode(), self.policy.max_bytes - FINISH
            shorter = text if len(data) <= limit else bounded(text, limit)[0]
            digest = blake2b(data, digest_size=16).digest()
            fragment = self._fragments[id(message)] = _Fragment(message, shorter, digest, len(data) + removed)
        return fragment

    def _recall(self, messages: Sequence[Message]) -> None:
        from pellucid.telemetry.histories import recall

        for message, known in recall(messages, self.policy, self._redactors, lambda each: self._fragment(each)[1:]):
            self._fragments[id(message)] = _Fragment(message, *known)

    def _recorded(self, text: str, removed: int = 0, unread: int = 0) -> CapturedValue:
        data = text.encode()
        digest, size = blake2b(data, digest_size=16).hexdigest(), len(data) + removed
        if not self.policy.content:
            return CapturedValue(None, digest, size)
        shorter, omitted = (text, 0) if len(data) <= self.policy.max_bytes else bounded(text, self.policy.max_bytes)
        return CapturedValue(shorter, digest, size, omitted + unread)

    def _encode(self, value: JSONValue, redactors: Sequence[Redactor]) -> tuple[str, int, int]:
        """Return JSON, the number of characters and items omitted, and the number of items if `value` is a list."""
        cleaner = Cleaner(redactors, self.policy.max_bytes)
        return dumps(cleaner.clean(value)), cleaner.removed, cleaner.omitted


CaptureFunction: TypeAlias = Callable[[Capturer], CapturedValue]
"""Returns the recording of a value; called only if the span records."""

_REFERABLE: Final = frozenset({semconv.INPUT, semconv.OUTPUT})
"""Attributes that may hold a reference; the semantic conventions prescribe the shape of the others."""


REPEATED: Final = 256
"""Minimum characters of content that is replaced by a reference to an earlier span; less is as short as a reference."""


class Content:
    """Recorded content of one span, within the bound of a span.

    Attributes:
        attributes: Attributes for the span.
    """

    def __init__(self, capturer: Capturer, span: Span) -> None:
        self._capturer = capturer
        self._span = span
        self._remaining = capturer.policy.max_span_bytes
        self._omitted: dict[str, int] = {}
        self.attributes: dict[str, AttributeValue] = {}

    def add(self, attribute: str, record: CaptureFunction, digest: str | None = None, size: str | None = None) -> None:
        """Record one value, shortened to the remaining bytes of the span.

        Args:
            attribute: Attribute for the value.
            record: Returns the recording.
            digest: Attribute for the digest.
            size: Attribute for the size.
        """
        recorded = record(self._capturer)
        if recorded.json is not None:
            if len(recorded.json) >= REPEATED and attribute in _REFERABLE:
                recorded = self._capturer.referring(recorded, format_span_id(self._span.get_span_context().span_id))
            length = size_of(recorded.json or "")
            if length > self._remaining:
                recorded = recorded.within(self._remaining)
                length = size_of(recorded.json or "")
            if length <= self._remaining:  # there may be no room even for an empty list
                self._remaining -= length
                self.attributes[attribute] = recorded.json or ""
        if recorded.omitted:
            self._omitted[attribute] = recorded.omitted
            self.attributes[semconv.CONTENT_OMITTED] = sum(self._omitted.values())
            self.attributes[semconv.CONTENT_OMITTED_FROM] = list(self._omitted)
            self.attributes[semconv.CONTENT_OMITTED_COUNTS] = list(self._omitted.values())
        if recorded.recorded_on is not None:
            self.attributes[semconv.CONTENT_REPEATED] = recorded.repeated
            self.attributes[semconv.CONTENT_RECORDED_ON] = recorded.recorded_on
        if digest is not None and size is not None:
            self.attributes[digest], self.attributes[size] = recorded.digest, recorded.size

    def add_new(self, attribute: str, version: str, record: CaptureFunction) -> None:
        """Record a value, unless the run has already recorded this version of it."""
        if self._capturer.is_new(attribute, version):
            self.add(attribute, record)
