"""Types of all kinds, with values of them, for generated tests of tools."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place."""

    x: int
    y: Annotated[int, Field(description="Upwards.")] = 0


class Options(TypedDict, total=False):
    depth: Annotated[int, Field(description="How deep.", ge=1)]


class Address(BaseModel):
    city: str = Field(description="In English.")
    point: Point | None = None


class Kind(NamedTuple):
    """A type, the JSON of a value, and the value itself."""

    hint: Any
    json: Any
    value: Any


PLAIN: Final = (
    Kind(str, "a", "a"),
    Kind(int, 3, 3),
    Kind(bool, True, True),
    Kind(Literal["a", 1], "a", "a"),
    Kind(Colour, "blue", Colour.BLUE),
    Kind(Point, {"x": 1}, Point(1)),
    Kind(Options, {"depth": 2}, {"depth": 2}),
    Kind(
        Address,
        {"city": "Oslo", "point": {"x": 1, "y": 2}},
        Address(city="Oslo", point=Point(1, 2)),
    ),
)


def nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    """Return types that hold others."""
    return st.one_of(
        inner.map(lambda kind: Kind(types.GenericAlias(list, kind.hint), [kind.json], [kind.value])),
        inner.map(lambda kind: Kind(types.GenericAlias(dict, (str, kind.hint)), {"k": kind.json}, {"k": kind.value})),
        inner.map(lambda kind: Kind(kind.hint | None, kind.json, kind.value)),
        inner.map(lambda kind: Kind(Annotated[kind.hint, Field(description="inner")], kind.json, kind.value)),
    )


KINDS: Final = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=3)
"""Types nested in each other."""
