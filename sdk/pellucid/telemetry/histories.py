"""Recordings of messages that another run of this process has recorded. Loaded when a run begins with many messages.

Each turn of a conversation records all messages before it. Redaction takes most of that time, and gives the same for
the same content: it is looked up by a hash of the content, so that a message that was changed is redacted anew. Only
Pellucid's own redactors are known to give the same each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from pellucid.messages import BlobPart, Message
from pellucid.telemetry.capture import DEFAULT_REDACTORS, CapturePolicy, Redactor

MOST_KEPT: Final = 2**24
"""Characters of recordings that are kept; the oldest are forgotten first."""

LONGEST: Final = 2**16
"""Characters of a text from which its hash would take longer than its redaction, which reads only the beginning."""

_Key: TypeAlias = tuple[int, tuple[Redactor, ...], bytes]

_kept: OrderedDict[_Key, Any] = OrderedDict()
_size = 0
_lock = threading.Lock()


def recall(
    messages: Sequence[Message],
    policy: CapturePolicy,
    redactors: Sequence[Redactor],
    record: Callable[[Message], Any],
) -> Iterator[tuple[Message, Any]]:
    """Yield messages with what `record` returned for the same content, or returns now; it begins with the JSON."""
    if not all(any(redactor is own for own in DEFAULT_REDACTORS) for redactor in redactors):
        return
    for message in messages:
        if (content := _hash(message)) is None:
            continue
        key = policy.max_bytes, tuple(redactors), content
        with _lock:
            recorded = _kept.get(key)
            if recorded is not None:
                _kept.move_to_end(key)
        if recorded is None:
            recorded = record(message)
            _keep(key, recorded)
        yield message, recorded


def _keep(key: _Key, recorded: Any) -> None:
    global _size  # noqa: PLW0603
    with _lock:
        if key in _kept:
            return
        _kept[key] = recorded
        _size += len(recorded[0])
        while _size > MOST_KEPT:
            _size -= len(_kept.popitem(last=False)[1][0])


def _hash(message: Message) -> bytes | None:
    """Return the hash of a message's content; None if it is long, or has something that is not JSON."""
    for part in message.parts:
        text = getattr(part, "response", getattr(part, "content", None))
        if isinstance(part, BlobPart) or isinstance(text, tuple) or (isinstance(text, str) and len(text) > LONGEST):
            return None
    try:
        content = to_json(message.to_dict(), bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError):
        return None
    return blake2b(content, digest_size=32).digest()
