"""Graph of the parts of a JSON Schema: which parts apply to a value, and which to its members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from pellucid.types import JSONObject, JSONValue

_LISTS: Final = ("anyOf", "oneOf", "allOf")
_SINGLE: Final = ("not", "if", "then", "else")
_BY_NAME: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_REPEATED: Final = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords for which alternatives are evaluated again: once to check them, up to twice to see what they evaluated."""


_MOST_LOOKS: Final = 100_000


@dataclass(slots=True)
class Node:
    """Part of a schema; other parts are numbers of nodes.

    Attributes:
        same: Parts that apply to the same value, as often as they are evaluated.
        named: Parts for members of an object by name.
        rest: Parts for other members of an object, and for members of an array after `places`.
        every: Parts for every member, whatever its name is.
        places: Parts for the first members of an array; None for no part.
        required: Names that an object must have before its members are checked.
        texts: Texts that a named member must be one of.
    """

    same: list[int] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    rest: dict[type, int] = field(default_factory=dict)
    every: dict[type, list[int]] = field(default_factory=lambda: {dict: [], list: []})
    places: list[int | None] = field(default_factory=list)
    required: tuple[str, ...] = ()
    texts: dict[str, list[str]] = field(default_factory=dict)
    is_parent: bool = False


class Graph:
    """Nodes of the parts of a schema that is valid; number 0 is the whole."""

    def __init__(self, schema: JSONObject) -> None:
        self._schema = schema
        self._numbers: dict[int, int] = {}
        self._parts: list[JSONObject] = []
        self._places: tuple[list[JSONObject], dict[str, list[JSONObject]]] | None = None
        self._looks = 0
        self.nodes: list[Node] = []
        self._number(schema)
        for part in self._parts:  # which grows
            self.nodes.append(self._node(part))

    @property
    def is_bounded(self) -> bool:
        """True if references were followed; False if many parts have ids or anchors that they may mean."""
        return self._looks < _MOST_LOOKS

    def _number(self, part: JSONObject) -> int:
        number = self._numbers.setdefault(id(part), len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number

    def _numbers_of(self, parts: Any) -> list[int]:
        return [self._number(part) for part in parts if isinstance(part, dict)]

    def _node(self, part: JSONObject) -> Node:
        get = part.get
        node = Node(same=self._numbers_of(part[word] for word in _SINGLE if word in part))
        for word in _LISTS:
            node.same += self._numbers_of(get(word, ()))
        for word in _BY_NAME:
            node.same += self._numbers_of(get(word, {}).values())
        for word in _REFERENCES:
            if word in part:
                node.same += self._numbers_of(self._targets(part[word]))
        if any(word in part for word in _REPEATED):
            node.same *= 3
        for name, member in get("properties", {}).items():
            node.named.update((name, number) for number in self._numbers_of([member]))
            if isinstance(member, dict) and (texts := _texts(member)):
                node.texts[name] = texts
        items, places = get("items"), get("prefixItems", ())
        items, places = (get("additionalItems"), items) if isinstance(items, list) else (items, places)
        node.places = [next(iter(self._numbers_of([place])), None) for place in places]
        for kind, rest in ((dict, get("additionalProperties")), (list, items)):
            node.rest.update((kind, number) for number in self._numbers_of([rest]))
        patterns = (*get("patternProperties", {}).values(), get("propertyNames"), get("unevaluatedProperties"))
        node.every = {
            dict: self._numbers_of(patterns),
            list: self._numbers_of([get("contains"), get("unevaluatedItems")]),
        }
        node.is_parent = bool(node.named or node.rest or node.places or node.every[dict] or node.every[list])
        if "additionalProperties" not in part:  # with it, members may be checked first
            node.required = tuple(get("required", ()) or ()) if isinstance(get("required", ()), list) else ()
        return node

    def _targets(self, reference: str) -> Iterator[JSONObject]:
        """Yield parts that a reference may mean; more than one only if parts have ids or anchors of their own."""
        fragment = unquote(reference.partition("#")[2])
        if self._places is None:
            self._places = _places(self._schema)
        resources, anchors = self._places
        if fragment and not fragment.startswith("/"):
            self._looks += len(anchors.get(fragment, ()))
            yield from anchors.get(fragment, ()) if self.is_bounded else ()
            return
        for resource in resources if self.is_bounded else ():
            part: JSONValue = resource
            for step in fragment.split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                part = _member(part, key)
                self._looks += len(resources) > 1
            if isinstance(part, dict):
                yield part


def _member(part: JSONValue, key: str) -> JSONValue:
    if isinstance(part, list):
        return part[int(key)] if key.isdecimal() and int(key) < len(part) else None
    return part.get(key) if isinstance(part, dict) else None


def _texts(part: JSONObject) -> list[str]:
    """Return the texts that a value must be one of; empty if it may be something else."""
    choices = [part["const"]] if "const" in part else part.get("enum", [])
    return choices if all(isinstance(choice, str) for choice in choices) else []


def _places(schema: JSONObject) -> tuple[list[JSONObject], dict[str, list[JSONObject]]]:
    """Return the parts that pointers may start from, and those with an anchor by its name."""
    resources, anchors = [schema], dict[str, list[JSONObject]]()
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            names = [part.get(word) for word in ("$id", "id", "$anchor", "$dynamicAnchor")]
            if part is not schema and any(isinstance(name, str) for name in names[:2]):
                resources.append(part)
            for name in names:
                if isinstance(name, str):
                    anchors.setdefault(name.removeprefix("#"), []).append(part)
        pending += [
            each for each in (part.values() if isinstance(part, dict) else part) if isinstance(each, dict | list)
        ]
    return resources, anchors
