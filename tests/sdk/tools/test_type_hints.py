"""Type hints of functions that become tools, compared with those of `typing`."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Generic, List, Literal, Optional, TypeAlias, TypeVar  # noqa: UP035  (hints that are not simple)

import pytest

from pellucid import (
    Agent,
    ConfigError,
    DiscoveryProvider,
    RunResult,
    Skill,
    Tool,
    ToolContext,
    ToolRegistry,
    Usage,
    tool,
)
from pellucid.providers.provider import HubCatalog
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools.hints import hints_of

T = TypeVar("T")
Words: TypeAlias = list["Color"]
Nothing: TypeAlias = None


class Color(Enum):
    RED = 1


class Outer:
    class Inner(Enum):
        """Class whose name needs an attribute."""

        ONE = 1


def simple(a: int, b: str | None, c: list[Color], d: dict[str, Any], *, e: None = None) -> None:
    """Use names of classes."""


def odd(a: Words, b: Nothing, c: Outer.Inner, d: Optional[List[int]], e: "Color") -> None:  # noqa: UP006, UP037, UP045
    """Use aliases, attributes, classes of `typing`, and quotes."""


def literal(a: Literal["int"], b: Annotated[int, "x"], c: int) -> None:
    """Use texts in types."""


class Box(Generic[T]):
    """A class with a type parameter."""


def generic(a: Box[int], b: Box[Color] | None, c: Box) -> None:  # type: ignore[type-arg]
    """Use a class with a type parameter."""


def reordered(a: int | str, b: str | int, c: tuple[int, ...]) -> None:
    """Use equal types that are written in another order."""


@functools.wraps(simple)
def wrapper(*args: Any, **kwargs: Any) -> None:
    """Take the hints of another function."""


def bare(a, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Use no hints."""


FUNCTIONS = [simple, odd, literal, generic, reordered, wrapper, bare, functools.partial, Outer.__init__]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_hints_are_those_of_typing(function: Callable[..., Any]) -> None:
    """Type hints are those that `typing.get_type_hints` returns, in the same order."""
    assert repr(hints_of(function)) == repr(typing.get_type_hints(function, include_extras=True))


def test_a_name_stands_for_what_it_is_now() -> None:
    """A class that was defined again under its name is the new one in the hints."""
    for members in ("A", "B"):
        names: dict[str, Any] = {"Kind": Enum("Kind", members)}
        exec("from __future__ import annotations\ndef search(kind: Kind) -> str: ...", names)
        assert hints_of(names["search"])["kind"] is names["Kind"]


@pytest.mark.parametrize("annotation", ["Missing", "int | 3", "list[", "Missing[int]", "int.x"])
def test_hints_that_cannot_be_resolved_are_refused(annotation: str) -> None:
    """The error about a hint that cannot be resolved names the tool."""
    names: dict[str, Any] = {}
    exec("def search(a): ...", names)
    names["search"].__annotations__ = {"a": annotation}
    with pytest.raises(ConfigError, match="tool 'search': its type hints cannot be resolved"):
        tool(names["search"])


def test_classes_are_called_with_types() -> None:
    """Generic classes of the SDK can be made with a type argument."""
    ends: dict[str, Any] = {"status": "completed", "messages": (), "usage": Usage(), "iterations": 1, "stop_reason": ""}
    Agent[int, str]("a", model=ScriptedModel("text"))
    DiscoveryProvider[int](FakeHub[int](), id="hub")
    HubCatalog[int]((), 1.0)
    RunResult[int](output=1, trace_id="", run_id="", **ends)
    Skill[int]("id", "description", "body")
    Tool[int](name="tool", run=print)
    ToolContext[int](deps=1)
    ToolRegistry[int]()
