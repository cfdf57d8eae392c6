"""Compact form of attributes: a shape that many spans share, and the values of one span.

A shape has the names of attributes, and the values of those that are labels of metrics, which have few values by
design. So a stored span has neither names nor the texts that repeat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.local.bodies import DIGEST, LONGEST_INLINE, digest_of, utf8
from pellucid_exporters.stored.rows import BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN, CONSTANT, HEX, TEXT, RUN = ".", "=", "#", "$", "@"
"""Marks of attributes. The value is among the values; in the shape; among the digests, in binary; a large text, whose
digest is among the digests; the id of the run."""

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
    keys = tuple(attributes)
    kinds = _kinds_of(keys)
    constants: list[str] = []
    digests: list[bytes] = []
    marks = ""
    for kind, value in zip(kinds, attributes.values(), strict=False):
        mark = PLAIN
        if type(value) is str:
            if len(value) > LONGEST_INLINE:
                mark = TEXT
                digests.append(_body(value, bodies))
            elif kind == CONSTANT:
                mark = CONSTANT
                constants.append(value)
            elif kind == RUN:
                mark = RUN
            elif kind == HEX and (digest := _binary(value)) is not None:
                mark = HEX
                digests.append(digest)
        if mark == PLAIN:
            values.append(value)
        marks += mark
    return (*head, marks, keys, tuple(constants)), b"".join(digests) or None


@lru_cache(maxsize=4096)
def _kinds_of(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the marks that short texts may have."""
    return tuple(
        CONSTANT if key in _CONSTANT else HEX if key in _DIGESTS else RUN if key == semconv.RUN_ID else PLAIN
        for key in keys
    )


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
    name, kind, scope, status, marks, keys, constants = json.loads(definition)
    remaining, fixed = iter(json.loads(values)), iter(constants)
    chunks = _cut(digests or b"")
    if name == FREE:
        name = next(remaining)
    attributes: dict[str, Any] = {}
    for mark, key in zip(marks, keys, strict=True):
        if mark == PLAIN:
            attributes[key] = next(remaining)
        elif mark == CONSTANT:
            attributes[key] = next(fixed)
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
