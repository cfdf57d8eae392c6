"""Compact form of attributes: a shape that many spans share, and the values of one span.

A shape has the names of attributes, and the values of those that are labels of metrics, which have few values by
design. So a stored span has neither names nor the texts that repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

from pellucid import semconv
from pellucid.semconv.names import RUN_ID
from pellucid.semconv.servers import ALL_METRICS
from pellucid_exporters.local.bodies import DIGEST, LONGEST_INLINE, digest_of, utf8
from pellucid_exporters.stored.rows import BODY

PLAIN, CONSTANT, HEX, TEXT, RUN = ".", "=", "#", "$", "@"
"""Marks of attributes. The value is among the values; in the shape; among the digests, in binary; a large text, whose
digest is among the digests; the id of the run."""

FREE: Final = ""
"""Name of a span whose name is the first of its values: those of other libraries may have any number of names."""

_PLAIN_TYPES: Final = frozenset({int, float, bool, type(None)})

_SELECTED: Final = (PLAIN, CONSTANT, HEX + TEXT)

_DIGEST: Final = re.compile(f"[0-9a-f]{{{2 * DIGEST}}}")

_Selection: TypeAlias = Callable[[Mapping[str, Any]], tuple[Any, ...]]

_CONSTANT: Final = frozenset(
    {name for metric in ALL_METRICS for name in metric.attributes} | {semconv.PHASE, semconv.OUTCOME}
)
_DIGESTS: Final = frozenset(
    {semconv.INPUT_DIGEST, semconv.OUTPUT_DIGEST, semconv.CATALOG_DIGEST, semconv.REQUEST_DIGEST}
)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Shape of spans. Nearly always there is one object of each, so it is compared by identity, which is fast.

    Attributes:
        parts: Name, kind, scope and status of the span, marks, names of attributes, and the values that are labels.
    """

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Selections from attributes of certain names and marks.

    Attributes:
        names: Names of the values.
        values, constants, digests: Return what is marked so from attributes; large texts are among the digests.
        large: Places of large texts among these.
    """

    keys: tuple[str, ...]
    marks: str
    names: tuple[str, ...]
    values: _Selection
    constants: _Selection
    digests: _Selection
    large: tuple[int, ...]


def split(
    head: tuple[str, ...], attributes: Mapping[str, Any], values: list[Any], bodies: dict[bytes, bytes]
) -> tuple[Shape, bytes | None]:
    """Return the shape and digests of attributes.

    Args:
        head: Name, kind, scope and status of the span.
        attributes: The attributes.
        values: Receives the values that are in neither.
        bodies: Receives the large texts by digest.
    """
    keys = tuple(attributes)
    plan = _usual_plan(keys)
    found = plan.values(attributes)
    for item in found:
        if type(item) is str and len(item) > LONGEST_INLINE:
            plan = _usual_plan(keys, _large(plan.names, found))
            found = plan.values(attributes)
            break
    try:
        shape, digests = _shape_and_digests(head, plan, attributes, bodies)
    except (TypeError, ValueError):  # the value of a constant, a digest or the run's id is not what its name says
        plan = _exact_plan(keys, attributes)
        shape, digests = _shape_and_digests(head, plan, attributes, bodies)
        found = plan.values(attributes)
    values += found
    return shape, digests or None


def _shape_and_digests(
    head: tuple[str, ...], plan: _Plan, attributes: Mapping[str, Any], bodies: dict[bytes, bytes]
) -> tuple[Shape, bytes]:
    """Return the shape and digests of attributes by a plan.

    Raises:
        TypeError, ValueError: a value does not fit its mark.
    """
    if RUN in plan.marks and (type(run_id := attributes[RUN_ID]) is not str or len(run_id) > LONGEST_INLINE):
        raise ValueError("the id of a run is a short text")
    shape = _shape_of(head, plan, plan.constants(attributes))
    texts: Sequence[str] = plan.digests(attributes)
    if plan.large:
        texts = [*texts]
        for place in plan.large:
            texts[place] = _body(texts[place], bodies).hex()
    joined = " ".join(texts)
    digests = bytes.fromhex(joined)
    if digests.hex(" ", DIGEST) != joined:
        raise ValueError("a digest has another form")
    return shape, digests


def _large(names: Sequence[str], items: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of large texts."""
    return tuple(
        [name for name, item in zip(names, items, strict=True) if type(item) is str and len(item) > LONGEST_INLINE]
    )


@lru_cache(maxsize=4096)
def _usual_plan(keys: tuple[str, ...], large: tuple[str, ...] = ()) -> _Plan:
    """Return the plan of attributes whose values are what their names say, with certain large texts."""
    return _plan_of(keys, "".join([TEXT if key in large else _mark_of(key) for key in keys]))


def _exact_plan(keys: tuple[str, ...], attributes: Mapping[str, Any]) -> _Plan:
    """Return the plan of attributes from their values, which takes longer."""
    large = _large(keys, [*attributes.values()])
    marks = [
        TEXT if key in large else _mark_of(key) if type(item) is str else PLAIN for key, item in attributes.items()
    ]
    texts = [str(attributes[key]) for key, mark in zip(keys, marks, strict=True) if mark == HEX]
    are_digests = all(map(_DIGEST.fullmatch, texts))
    return _plan_of(keys, "".join(marks) if are_digests else "".join(marks).replace(HEX, PLAIN))


def _mark_of(key: str) -> str:
    """Return the mark of an attribute with a short text."""
    return CONSTANT if key in _CONSTANT else HEX if key in _DIGESTS else RUN if key == RUN_ID else PLAIN


@lru_cache(maxsize=4096)
def _plan_of(keys: tuple[str, ...], marks: str) -> _Plan:
    names = {mark: tuple(key for key, each in zip(keys, marks, strict=True) if each in mark) for mark in _SELECTED}
    plain, constant, digests = (names[mark] for mark in _SELECTED)
    large = tuple(place for place, mark in enumerate([mark for mark in marks if mark in HEX + TEXT]) if mark == TEXT)
    return _Plan(keys, marks, plain, _selection(plain), _selection(constant), _selection(digests), large)


def _selection(names: Sequence[str]) -> _Selection:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple(attributes[name] for name in names)


@lru_cache(maxsize=8192)
def _shape_of(head: tuple[str, ...], plan: _Plan, constants: tuple[Any, ...]) -> Shape:
    """Return a shape.

    Raises:
        ValueError: a constant is no short text. It is not in the cache then, for which 1 and `True` are the same.
    """
    if any(type(item) is not str or len(item) > LONGEST_INLINE for item in constants):
        raise ValueError("constants are short texts")
    return Shape((*head, plan.marks, plan.keys, constants))


def lighten(value: Any, bodies: dict[bytes, bytes]) -> Any:
    """Return a value with a reference in place of each large text."""
    kind = type(value)  # nearly all values are of these types, and this test is fast
    if kind in _PLAIN_TYPES:
        return value
    if kind is str or isinstance(value, str):
        return {BODY: _body(value, bodies).hex()} if len(value) > LONGEST_INLINE else value
    if kind is dict or isinstance(value, Mapping):
        return {
            key: item
            if (of := type(item)) in _PLAIN_TYPES or (of is str and len(item) <= LONGEST_INLINE)
            else lighten(item, bodies)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [lighten(item, bodies) for item in value]
    return value


def definition_of(shape: Shape) -> str:
    """Return the text of a shape."""
    return json.dumps(shape.parts, separators=(",", ":"))


def constants(definition: str) -> dict[str, Any]:
    """Return the attributes whose values are in a shape."""
    *_, marks, keys, fixed = json.loads(definition)
    return dict(zip([key for mark, key in zip(marks, keys, strict=True) if mark == CONSTANT], fixed, strict=True))


def _body(text: str, bodies: dict[bytes, bytes]) -> bytes:
    content = utf8(text)
    digest = digest_of(content)
    bodies[digest] = content
    return digest
