"""Compact form of attributes: a shape that many spans share, and the values of one span.

A shape has the names of attributes, and the values of those that are labels of metrics, which have few values by
design. So a stored span has neither names nor the texts that repeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from pellucid import semconv
from pellucid.semconv.servers import ALL_METRICS
from pellucid_exporters.local.bodies import DIGEST, LONGEST_INLINE, digest_of, utf8
from pellucid_exporters.stored.rows import BODY

PLAIN, CONSTANT, HEX, TEXT, RUN = ".", "=", "#", "$", "@"
"""Marks of attributes. The value is among the values; in the shape; among the digests, in binary; a large text, whose
digest is among the digests; the id of the run."""

FREE: Final = ""
"""Name of a span whose name is the first of its values: those of other libraries may have any number of names."""

_PLAIN_TYPES: Final = frozenset({int, float, bool, type(None)})

_Selection: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]

_CONSTANT: Final = frozenset(
    {name for metric in ALL_METRICS for name in metric.attributes} | {semconv.PHASE, semconv.OUTCOME}
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
    keys, items = tuple(attributes), tuple(attributes.values())
    marks, texts = _kind_of(keys, tuple(map(type, items)))
    if max(map(len, texts(items)), default=0) > LONGEST_INLINE:
        marks = "".join(
            [
                TEXT if type(item) is str and len(item) > LONGEST_INLINE else mark
                for mark, item in zip(marks, items, strict=True)
            ]
        )
    places = _places_of(marks)
    digests = _digests(places, items, bodies)
    if digests is None:
        places = _places_of(marks := marks.replace(HEX, PLAIN))
        digests = _digests(places, items, bodies)
    values += places.values(items)
    return (*head, marks, keys, places.constants(items)), digests or None


@lru_cache(maxsize=4096)
def _kind_of(keys: tuple[str, ...], types: tuple[type, ...]) -> tuple[str, _Selection]:
    """Return the marks of attributes with these names and types, if all texts are short; and what selects the texts."""
    marks = "".join([_mark_of(key) if kind is str else PLAIN for key, kind in zip(keys, types, strict=True)])
    return marks, _selection([place for place, kind in enumerate(types) if kind is str])


def _mark_of(key: str) -> str:
    """Return the mark of an attribute with a short text."""
    return CONSTANT if key in _CONSTANT else HEX if key in _DIGESTS else RUN if key == semconv.RUN_ID else PLAIN


class _Places(NamedTuple):
    """Attributes by their marks.

    Attributes:
        values, constants: Return what is marked so from a sequence of all.
        digests: Places of digests and large texts, and whether it is a text.
    """

    values: _Selection
    constants: _Selection
    digests: tuple[tuple[int, bool], ...]


@lru_cache(maxsize=4096)
def _places_of(marks: str) -> _Places:
    return _Places(
        _selection([place for place, mark in enumerate(marks) if mark == PLAIN]),
        _selection([place for place, mark in enumerate(marks) if mark == CONSTANT]),
        tuple((place, mark == TEXT) for place, mark in enumerate(marks) if mark in {HEX, TEXT}),
    )


def _selection(places: Sequence[int]) -> _Selection:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[place] for place in places)


def _digests(places: _Places, items: tuple[Any, ...], bodies: dict[bytes, bytes]) -> bytes | None:
    """Return digests and those of large texts; None if a text is not the digest that its name says it is."""
    if not places.digests:
        return b""
    texts = [_body(items[place], bodies).hex() if is_text else items[place] for place, is_text in places.digests]
    joined = " ".join(texts)
    try:
        digests = bytes.fromhex(joined)
    except ValueError:
        return None
    return digests if digests.hex(" ", DIGEST) == joined else None


def lighten(value: Any, bodies: dict[bytes, bytes]) -> Any:
    """Return a value with a reference in place of each large text."""
    kind = type(value)  # nearly all values are of these types, and this test is fast
    if kind in _PLAIN_TYPES:
        return value
    if kind is str or isinstance(value, str):
        return {BODY: _body(value, bodies).hex()} if len(value) > LONGEST_INLINE else value
    if kind is dict or isinstance(value, Mapping):
        return {key: item if type(item) in _PLAIN_TYPES else lighten(item, bodies) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [lighten(item, bodies) for item in value]
    return value


def definition_of(shape: tuple[Any, ...]) -> str:
    """Return the text of a shape."""
    return json.dumps(shape, separators=(",", ":"))


def constants(definition: str) -> dict[str, Any]:
    """Return the attributes whose values are in a shape."""
    *_, marks, keys, fixed = json.loads(definition)
    return dict(zip([key for mark, key in zip(marks, keys, strict=True) if mark == CONSTANT], fixed, strict=True))


def _body(text: str, bodies: dict[bytes, bytes]) -> bytes:
    content = utf8(text)
    digest = digest_of(content)
    bodies[digest] = content
    return digest
