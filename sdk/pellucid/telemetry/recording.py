"""Turning content into what is recorded of it: JSON that is redacted, bounded and valid, with a digest and a size.

The cost is that of what is new: the JSON of a message is made once in a run and joined from then on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from pellucid.messages import Message, ToolDefinition
from pellucid.telemetry.capture import CapturePolicy, Redactor, mask_secret_keys
from pellucid.types import JSONValue

MAX_DEPTH = 32
MAX_ITEMS = 1024
MAX_BITS = 4096
"""Integers of more bits are not recorded: Python refuses to write very long ones."""

MARGIN = 1024
"""Characters beyond the cut of a long text that redactors see, so that no half of a secret stays."""

FINISH = 64
"""Bytes left for an answer's finish reason."""

_LEAVES = (str, bool, int, float, type(None))


class Recorded(NamedTuple):
    """What is recorded of one value.

    Attributes:
        json: Redacted and bounded JSON; None if the policy records no content.
        digest: Hash of the redacted JSON.
        size: Bytes of the redacted JSON, and characters that its bounds took away.
        omitted: Messages or items left out.
    """

    json: str | None
    digest: str
    size: int
    omitted: int = 0


class _Fragment(NamedTuple):
    """One message: kept so that its identity stays taken while the fragment is."""

    message: Message
    json: str
    digest: bytes
    size: int


class _Chain:
    """A conversation that grows: the JSON of each message, and a digest and size that cost only what is new."""

    __slots__ = ("bytes", "digest", "fragments", "size")

    def __init__(self) -> None:
        self.fragments: list[_Fragment] = []
        self.digest = b""
        self.size = 2
        self.bytes = 2

    def continues(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` begin with what is here; histories are only ever added to."""
        known = len(self.fragments)
        return known <= len(messages) and (not known or messages[known - 1] is self.fragments[-1].message)

    def add(self, fragment: _Fragment) -> None:
        self.fragments.append(fragment)
        self.digest = blake2b(self.digest + fragment.digest, digest_size=16).digest()
        self.size += fragment.size + 1
        self.bytes += _size(fragment.json) + 1

    def recorded(self, limit: int) -> tuple[str, int]:
        """Return the JSON of as many of the last messages as fit, and how many were left out."""
        first, size = 0, self.bytes
        while size > limit and first < len(self.fragments) - 1:
            size -= _size(self.fragments[first].json) + 1
            first += 1
        return f"[{','.join([fragment.json for fragment in self.fragments[first:]])}]", first


class Recorder:
    """Records the content of one run under one policy."""

    __slots__ = ("_chain", "_fragments", "_last", "_policy", "_redactors")

    def __init__(self, policy: CapturePolicy) -> None:
        self._policy = policy
        self._redactors = policy.redactors if policy.mode != "full" else ()
        self._fragments: dict[int, _Fragment] = {}
        self._chain = _Chain()
        self._last: tuple[object, Recorded] | None = None

    @property
    def policy(self) -> CapturePolicy:
        """What is recorded."""
        return self._policy

    def value(self, value: JSONValue) -> Recorded:
        """Record any value."""
        text, removed = self._encode(value, self._redactors)
        return self._recorded(text, removed)

    def facts(self, value: JSONValue) -> Recorded:
        """Record a value of Pellucid's own making, which holds no secrets and nothing that is not JSON."""
        return self._recorded(_dumps(value), 0)

    def clean(self, value: JSONValue) -> JSONValue:
        """Return `value` redacted and bounded; None if the policy records no content."""
        if not self._policy.content:
            return None
        return json.loads(_bounded(self._encode(value, self._redactors)[0], self._policy.max_bytes)[0])

    def text(self, text: str) -> str | None:
        """Return a short text such as an error's, redacted; None if the policy records no content."""
        if not self._policy.content:
            return None
        redacted: JSONValue = text[: self._policy.max_bytes + MARGIN]
        for redact in self._redactors:
            redacted = redact((), redacted)
        return redacted[: self._policy.max_bytes] if isinstance(redacted, str) else None

    def messages(self, messages: Sequence[Message]) -> Recorded:
        """Record a conversation; if it is too big, its oldest messages are left out and counted.

        A conversation that goes on from the one recorded before costs only its new messages.
        """
        if self._last is not None and self._last[0] is messages:
            return self._last[1]
        chain = self._chain if self._chain.continues(messages) else _Chain()
        for message in messages[len(chain.fragments) :]:
            chain.add(self._fragment(message))
        recorded = self._chained(chain)
        self._last = (messages, recorded)
        return recorded

    def answer(self, message: Message, finish_reason: str) -> Recorded:
        """Record a model's answer as the output messages, which carry their finish reason."""
        fragment = self._fragment(message)
        reason = "" if message.finish_reason else f',"finish_reason":{json.dumps(finish_reason)}'
        text = f"[{fragment.json[:-1]}{reason}}}]"
        return Recorded(json=text if self._policy.content else None, digest=fragment.digest.hex(), size=fragment.size)

    def _chained(self, chain: _Chain) -> Recorded:
        text, omitted = chain.recorded(self._policy.max_bytes) if self._policy.content else (None, 0)
        return Recorded(json=text, digest=chain.digest.hex(), size=chain.size, omitted=omitted)

    def definitions(self, definitions: Iterable[ToolDefinition]) -> Recorded:
        """Record tool definitions. Their keys are schema words, so only the shapes of values are redacted."""
        redactors = tuple(redactor for redactor in self._redactors if redactor is not mask_secret_keys)
        text, removed = self._encode([definition.to_dict() for definition in definitions], redactors)
        return self._recorded(text, removed)

    def _fragment(self, message: Message) -> _Fragment:
        found = self._fragments.get(id(message))
        if found is None:
            text, removed = self._encode(message.to_dict(), self._redactors)
            digest = blake2b(text.encode(), digest_size=16).digest()
            bounded, _ = _bounded(text, self._policy.max_bytes - FINISH)
            found = self._fragments[id(message)] = _Fragment(message, bounded, digest, _size(text) + removed)
        return found

    def _recorded(self, text: str, removed: int) -> Recorded:
        digest = blake2b(text.encode(), digest_size=16).hexdigest()
        size = _size(text) + removed
        if not self._policy.content:
            return Recorded(json=None, digest=digest, size=size)
        bounded, omitted = _bounded(text, self._policy.max_bytes)
        return Recorded(json=bounded, digest=digest, size=size, omitted=omitted)

    def _encode(self, value: JSONValue, redactors: Sequence[Redactor]) -> tuple[str, int]:
        cleaner = _Cleaner(redactors, self._policy.max_bytes)
        return _dumps(cleaner.clean(value, (), 0)), cleaner.removed


class _Cleaner:
    """Walks a value once: redacts leaves, cuts long texts, and makes everything JSON-able."""

    __slots__ = ("_max_text", "_redactors", "removed")

    def __init__(self, redactors: Sequence[Redactor], max_bytes: int) -> None:
        self._redactors = redactors
        self._max_text = max_bytes // 2
        self.removed = 0

    def clean(self, value: Any, path: tuple[str, ...], depth: int) -> JSONValue:
        if isinstance(value, _LEAVES):
            return self._leaf(value, path)
        if depth == MAX_DEPTH:
            return "[nested too deeply]"
        if isinstance(value, dict):
            items = self._first(value.items())
            return {self._key(key): self.clean(item, (*path, str(key)), depth + 1) for key, item in items}
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)  # in an order that is the same every time
        if isinstance(value, (list, tuple)):
            return [self.clean(item, path, depth + 1) for item in self._first(value)]
        return self.clean(dict(value) if isinstance(value, Mapping) else _jsonable(value), path, depth + 1)

    def _leaf(self, value: JSONValue, path: tuple[str, ...]) -> JSONValue:
        over = len(value) - self._max_text if isinstance(value, str) else 0
        if over > 0:
            value = value[: self._max_text + MARGIN]
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            value = f"[a number of {value.bit_length()} bits]"
        for redact in self._redactors:
            value = redact(path, value)
        return self._cut(value, over) if over > 0 and isinstance(value, str) else value

    def _key(self, key: object) -> str:
        text = str(key)
        over = len(text) - self._max_text
        return text if over <= 0 else self._cut(text, over)

    def _cut(self, text: str, over: int) -> str:
        self.removed += over
        return f"{text[: self._max_text]}… [{over} more characters]"

    def _first(self, items: Collection[Any]) -> Collection[Any]:
        if len(items) <= MAX_ITEMS:
            return items
        self.removed += len(items) - MAX_ITEMS
        return list(islice(items, MAX_ITEMS))


def _jsonable(value: Any) -> JSONValue:
    """Turn an object into JSON-able data; one that cannot be turned is named by its type."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError):
        return f"[{type(value).__module__}.{type(value).__qualname__}]"


def _dumps(value: JSONValue) -> str:
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError):
        # A lone surrogate has no UTF-8 form; written as a JSON escape it survives. NaN is no JSON, and becomes a text.
        value = json.loads(json.dumps(value), parse_constant=str)
        return json.dumps(value, separators=(",", ":"))


def _size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _bounded(text: str, limit: int) -> tuple[str, int]:
    """Shorten JSON until it fits, staying valid; return it with the number of top-level items left out."""
    if _size(text) <= limit:
        return text, 0
    value = json.loads(text)
    if isinstance(value, list):
        return _first_items(value, limit)
    return _dumps(_shrunk(value, limit)), 0


def _first_items(items: list[JSONValue], limit: int) -> tuple[str, int]:
    kept, left = [], limit - 2
    for item in items:
        encoded = _dumps(item)
        left -= _size(encoded) + 1
        if left < 0:
            break
        kept.append(encoded)
    return f"[{','.join(kept)}]", len(items) - len(kept)


def _shrunk(value: JSONValue, limit: int) -> JSONValue:
    """Cut the texts and lists inside `value`, harder each time, until it fits."""
    for text_limit in (4096, 1024, 256, 64, 16):
        shorter = _cut_inside(value, text_limit)
        if _size(_dumps(shorter)) <= limit:
            return shorter
    return {"omitted": f"{_size(_dumps(value))} bytes"}


def _cut_inside(value: JSONValue, text_limit: int) -> JSONValue:
    if isinstance(value, str):
        over = len(value) - text_limit
        return value if over <= 0 else f"{value[:text_limit]}… [{over} more characters]"
    if isinstance(value, list):
        return [_cut_inside(item, text_limit) for item in value[:text_limit]]
    if isinstance(value, dict):
        return {key: _cut_inside(item, text_limit) for key, item in list(value.items())[:text_limit]}
    return value
