"""Batches of bounded size: receivers reject gRPC messages of more than 4 MiB, which loses a whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pellucid_exporters.otlp.encoding import Encoded

MAX_REQUEST: Final = 3 * 1024 * 1024
"""Maximum bytes of the items of one request, with a margin below 4 MiB."""

MAX_POINTS: Final = 512
"""Maximum number of data points in one request. An exponential histogram with exemplars has at most 3 KiB."""


def split(encoded: Iterable[Encoded], too_big: Callable[[Encoded], None]) -> Iterator[list[Encoded]]:
    """Yield items in batches of at most `MAX_REQUEST` bytes; one that alone has more is given to `too_big`."""
    batch: list[Encoded] = []
    total = 0
    for item in encoded:
        size = len(item.content)
        if size > MAX_REQUEST:
            too_big(item)
            continue
        if batch and total + size > MAX_REQUEST:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
