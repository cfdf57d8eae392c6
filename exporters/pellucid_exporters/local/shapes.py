"""Compact form of attributes: a shape that many spans share, and the values of one span.

A shape has the names of attributes, and the values of those that are labels of metrics, which have few values by
design. So a stored span has neither names nor the texts that repeat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.local.bodies import DIGEST, LONGEST_INLINE, digest_of, utf8
from pellucid_exporters.local.rows import BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN, HEX, TEXT, RUN = ".", "#", "$", "@"
"""Marks before the name of an attribute: its value is among the values; among the digests in binary; among the digests
as that of a large text; the id of the run."""

FREE: Final = ""
"""Name of a span whose name is the first of its values: those of other libraries may have any number of names."""

_CONSTANT: Final = frozenset(
    {name for metric in semconv.METRICS for name in metric.attributes} | {semconv.PHASE, semconv.OUTCOME}
)
_DIGESTS: Final = frozenset(
    {semconv.INPUT_DIGEST, semconv.OUTPUT_DIGEST, semconv.CATALOG_DIGEST, semconv.REQUEST_DIGEST}
)


def split(
    head: tuple[str, ...], attributes: Mapping[str, Any], values: list[Any], bodies: dict[bytes, bytes]
) -> tuple[tuple[Any, ...], bytes | None]:
    """Return the shape and digests of attributes.

    Args:
        head: Name, kind, scope and status of the span.
        attributes: The attributes.
        values: Receives the values that are in neither.
        bodies: Receives the large texts by digest.
    """
    shape: list[Any] = [*head]
    digests: list[bytes] = []
    for key, value in attributes.items():
        if type(value) is str:
            if key in _CONSTANT and len(value) <= LONGEST_INLINE:
                shape.append((key, value))
                continue
            if len(value) > LONGEST_INLINE:
                shape.append(TEXT + key)
                digests.append(_body(value, bodies))
                continue
            if key in _DIGESTS and (digest := _binary(value)) is not None:
                shape.append(HEX + key)
                digests.append(digest)
                continue
            if key == semconv.RUN_ID:
                shape.append(RUN + key)
                continue
        shape.append(PLAIN + key)
        values.append(value)
    return tuple(shape), b"".join(digests) or None


def lighten(value: Any, bodies: dict[bytes, bytes]) -> Any:
    """Return a value with a reference in place of each large text."""
    if isinstance(value, str):
        return {BODY: _body(value, bodies).hex()} if len(value) > LONGEST_INLINE else value
    if isinstance(value, Mapping):
        return {key: lighten(item, bodies) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [lighten(item, bodies) for item in value]
    return value


def definition_of(shape: tuple[Any, ...]) -> str:
    """Return the text of a shape."""
    return json.dumps(shape, separators=(",", ":"))


def join(
    definition: str, values: bytes, digests: bytes | None, run_id: str
) -> tuple[str, str, str, str, dict[str, Any]]:
    """Return name, kind, scope, status and attributes of a span."""
    name, kind, scope, status, *items = json.loads(definition)
    remaining = iter(json.loads(values))
    chunks = _cut(digests or b"")
    if name == FREE:
        name = next(remaining)
    attributes: dict[str, Any] = {}
    for item in items:
        if isinstance(item, list):
            attributes[item[0]] = item[1]
            continue
        mark, key = item[0], item[1:]
        if mark == PLAIN:
            attributes[key] = next(remaining)
        elif mark == HEX:
            attributes[key] = next(chunks)
        elif mark == TEXT:
            attributes[key] = {BODY: next(chunks)}
        else:
            attributes[key] = run_id
    return name, kind, scope, status, attributes


def _body(text: str, bodies: dict[bytes, bytes]) -> bytes:
    content = utf8(text)
    digest = digest_of(content)
    bodies[digest] = content
    return digest


def _binary(text: str) -> bytes | None:
    """Return the bytes of a digest, if it has the form of Pellucid's."""
    if len(text) != 2 * DIGEST:
        return None
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if digest.hex() == text else None


def _cut(digests: bytes) -> Iterator[str]:
    for start in range(0, len(digests), DIGEST):
        yield digests[start : start + DIGEST].hex()
