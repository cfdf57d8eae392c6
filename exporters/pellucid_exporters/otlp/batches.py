"""Batches of bounded size: receivers reject gRPC messages of more than 4 MiB, which loses a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

MAX_REQUEST: Final = 3 * 1024 * 1024
"""Maximum estimated bytes of one request, with a margin below 4 MiB."""

MAX_POINTS: Final = 512
"""Maximum number of data points in one request. An exponential histogram with exemplars has at most 3 KiB."""

_ITEM: Final = 256
"""Bytes of a span, event, link or record without its attributes: ids, times, numbers, lengths."""

_FIELD: Final = 16
"""Bytes of an attribute without its name and value."""

ItemT = TypeVar("ItemT")


def split(
    items: Sequence[ItemT], weigh: Callable[[ItemT], int], too_big: Callable[[ItemT, int], None]
) -> Iterator[Sequence[ItemT]]:
    """Yield the items in batches of at most `MAX_REQUEST` bytes; one that alone weighs more is given to `too_big`."""
    batch: list[ItemT] = []
    total = 0
    for item in items:
        weight = weigh(item)
        if weight > MAX_REQUEST:
            too_big(item, weight)
            continue
        if batch and total + weight > MAX_REQUEST:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += weight
    if batch:
        yield batch


def weigh_span(span: ReadableSpan) -> int:
    """Return an upper estimate of the bytes of a span in a request."""
    parts = [span.attributes, *(event.attributes for event in span.events), *(link.attributes for link in span.links)]
    texts = [span.name, span.status.description or "", *(event.name for event in span.events)]
    return _ITEM * len(parts) + sum(map(_weigh, parts)) + sum(map(_weigh, texts))


def weigh_record(record: ReadableLogRecord) -> int:
    """Return an upper estimate of the bytes of a log record in a request."""
    return _ITEM + _weigh(record.log_record.body) + _weigh(record.log_record.attributes)


def _weigh(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_FIELD + _weigh(key) + _weigh(item) for key, item in value.items())
    if isinstance(value, Sequence):
        return sum(_FIELD + _weigh(item) for item in value)
    return _FIELD
