"""Attributes of a stored span, decoded when they are read: of the spans of a large run, few are."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from pellucid_exporters.local.bodies import DIGEST
from pellucid_exporters.local.schema import UnusableStore
from pellucid_exporters.local.shapes import CONSTANT, FREE, HEX, PLAIN, RUN, TEXT
from pellucid_exporters.stored.rows import BODY

_HEX: Final = 2 * DIGEST


class StoredAttributes(Mapping[str, Any]):
    """Attributes of a span, as they are stored: a shape that many spans share, and the values of this one."""

    __slots__ = ("_digests", "_run_id", "_shape", "_values")

    def __init__(self, definition: str, values: bytes, digests: bytes | None, run_id: str) -> None:
        self._shape, self._values, self._digests, self._run_id = shape_of(definition), values, digests, run_id

    @property
    def name(self) -> str:
        """Name of the span."""
        name = self._shape.name
        return str(_decoded(self._values)[0]) if name == FREE else name

    @property
    def kind(self) -> str:
        """Kind of the span."""
        return self._shape.kind

    @property
    def scope(self) -> str:
        """Instrumentation scope of the span."""
        return self._shape.scope

    @property
    def status(self) -> str:
        """Status of the span."""
        return self._shape.status

    def __getitem__(self, key: str) -> Any:
        """Return the value of an attribute."""
        place = self._shape.places[key]
        return self._shape.items[place] if place in self._shape.constant else self._items()[place]

    def __contains__(self, key: object) -> bool:
        """Return whether the span has an attribute."""
        return key in self._shape.places

    def __iter__(self) -> Iterator[str]:
        """Return the names in the order in which they were set."""
        return iter(self._shape.places)

    def __len__(self) -> int:
        """Return the number of attributes."""
        return len(self._shape.places)

    def __repr__(self) -> str:
        """Return the attributes as a dictionary shows them."""
        return repr(self._dict())

    def keys(self) -> KeysView[str]:
        """Return the names in the order in which they were set."""
        return self._shape.places.keys()

    def items(self) -> ItemsView[str, Any]:
        """Return names and values; all are decoded at once."""
        return self._dict().items()

    def values(self) -> ValuesView[Any]:
        """Return the values; all are decoded at once."""
        return self._dict().values()

    def _dict(self) -> dict[str, Any]:
        return dict(zip(self._shape.places, self._items(), strict=True))

    def _items(self) -> list[Any]:
        return _items(self._shape.definition, self._values, self._digests, self._run_id)


class _Shape(NamedTuple):
    """A shape as it is read.

    Attributes:
        definition: Its text, the same object for all of its spans.
        places: Places of attributes by their names, in order.
        items: Values of attributes, those that are constant in their places.
        constant: Places of these.
        plain, digests, runs: Places of the others; of digests, with whether it is a text.
    """

    definition: str
    name: str
    kind: str
    scope: str
    status: str
    places: dict[str, int]
    items: list[Any]
    constant: frozenset[int]
    plain: tuple[int, ...]
    digests: tuple[tuple[int, bool], ...]
    runs: tuple[int, ...]


@lru_cache(maxsize=4096)
def shape_of(definition: str) -> _Shape:
    """Return a shape from its text."""
    name, kind, scope, status, marks, keys, constants = json.loads(definition)
    fixed = iter(constants)
    return _Shape(
        definition,
        name,
        kind,
        scope,
        status,
        places={key: place for place, key in enumerate(keys)},
        items=[next(fixed) if mark == CONSTANT else None for mark in marks],
        constant=frozenset(place for place, mark in enumerate(marks) if mark == CONSTANT),
        plain=tuple(place for place, mark in enumerate(marks) if mark == PLAIN),
        digests=tuple((place, mark == TEXT) for place, mark in enumerate(marks) if mark in {HEX, TEXT}),
        runs=tuple(place for place, mark in enumerate(marks) if mark == RUN),
    )


@lru_cache(maxsize=16)  # several attributes of a span are read one after the other
def _items(definition: str, values: bytes, digests: bytes | None, run_id: str) -> list[Any]:
    """Return the values of attributes in the order of their shape.

    Raises:
        StoreError: they are damaged.
    """
    shape, found = shape_of(definition), _decoded(values)
    items = shape.items.copy()
    try:
        for place, value in zip(shape.plain, found[shape.name == FREE :], strict=True):
            items[place] = value
    except ValueError as error:
        raise _damaged(error) from error
    if shape.digests:
        hexadecimal = (digests or b"").hex()
        for number, (place, is_text) in enumerate(shape.digests):
            digest = hexadecimal[number * _HEX : (number + 1) * _HEX]
            items[place] = {BODY: digest} if is_text else digest
    for place in shape.runs:
        items[place] = run_id
    return items


def _decoded(values: bytes) -> list[Any]:
    try:
        return list(from_json(values))
    except ValueError as error:
        raise _damaged(error) from error


def _damaged(error: ValueError) -> UnusableStore:
    return UnusableStore(f"a span of the store cannot be read ({error}); move the store away if it is damaged")
