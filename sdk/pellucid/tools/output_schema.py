"""JSON Schemas of what functions return; imported for the first one whose annotation may have one."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, get_args

from pydantic import TypeAdapter

from pellucid.messages import Message, Part, Parts
from pellucid.tools.signature import MOST_TYPES, Untitled
from pellucid.types import JSONObject, JSONValue

_CONTENT: Final = (*get_args(Part), Parts, Message)


def output_schema_of(hint: Any) -> JSONObject | None:
    """Return the JSON Schema of results of a type, if they are structured.

    It is None for what has no schema, for content, and for types that say nothing of the data: texts, numbers,
    `dict[str, Any]`, `list`.
    """
    try:
        return _schema_of(hint, repr(hint))
    except TypeError:  # the hint has no hash
        return _schema_of.__wrapped__(hint, "")


@lru_cache(MOST_TYPES)
def _schema_of(hint: Any, spelled: str) -> JSONObject | None:
    """Return the schema of a type; `spelled` tells types apart that are equal but have different schemas."""
    if _has_content(hint):
        return None
    try:
        schema = TypeAdapter(hint).json_schema(mode="serialization", schema_generator=_Results)
    except Exception:  # noqa: BLE001  (of pydantic, or of the application's type: it describes no data)
        return None
    definitions: JSONObject = schema.get("$defs", {})
    schema = _target(schema, definitions)
    schema.pop("title", None)
    return schema if _is_structured(schema, definitions) else None


def _has_content(hint: Any, known: tuple[Any, ...] = ()) -> bool:
    """Return whether a type may be content parts, which are no JSON; `known` are types that it is part of."""
    if isinstance(hint, type) and not get_args(hint):
        return issubclass(hint, _CONTENT)
    if typing.get_origin(hint) is typing.Literal or hint in known:
        return False
    named = [getattr(hint, name) for name in ("__supertype__", "__value__") if hasattr(hint, name)]
    return any(_has_content(part, (*known, hint)) for part in (*named, *get_args(hint)))


def _is_structured(schema: JSONValue, definitions: JSONObject) -> bool:
    """Return whether a schema says more than that a value is text, a number, an object or an array."""
    if not isinstance(schema, Mapping):
        return False
    schema = _target(schema, definitions)
    if any(_is_structured(choice, definitions) for word in ("anyOf", "oneOf") for choice in schema.get(word, ())):
        return True
    members = schema.get("additionalProperties") or schema.get("items")
    is_typed = isinstance(members, Mapping) and bool(members)
    return is_typed or not {"properties", "patternProperties", "prefixItems"}.isdisjoint(schema)


def _target(schema: Mapping[str, Any], definitions: JSONObject) -> JSONObject:
    """Return a schema with the definition that it refers to, if it does, in place of the reference."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return {**definitions.get(name, {}), **{key: value for key, value in schema.items() if key != "$ref"}}


class _Results(Untitled):
    """Schemas of results; a default that has no JSON is omitted, and nobody has to know."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  (as in the base)

    def ser_schema(self, schema: Any) -> Any:
        """Return the schema of what a serializer returns; that of an application's which has no type may be anything.

        Otherwise pydantic takes the schema of the type before it is serialized, as is right for its own serializers.
        """
        found = super().ser_schema(schema)
        module = getattr(schema.get("function"), "__module__", "pydantic")
        return {} if found is None and module.partition(".")[0] != "pydantic" else found
