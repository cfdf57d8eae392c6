"""JSON Schemas that OpenAI's strict mode supports, in which every answer of a model matches the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pellucid.types import JSONValue

_KEYWORDS: Final = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    }
)
_FORMATS: Final = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
_SHAPES: Final = frozenset({"anyOf", "const", "enum", "type"})


def is_strict(schema: JSONValue) -> bool:
    """Return whether a schema can be sent unchanged with `strict: true`.

    Every object must be closed and require all its properties, and all keywords must be in the subset of "Structured
    Outputs" (https://platform.openai.com/docs/guides/structured-outputs#supported-schemas).
    """
    return isinstance(schema, Mapping) and schema.get("type") == "object" and _is_supported(schema)


def _is_supported(schema: JSONValue) -> bool:
    if not isinstance(schema, Mapping) or not schema.keys() <= _KEYWORDS:
        return False
    if "$ref" in schema:
        return len(schema) == 1
    if not schema.keys() & _SHAPES or schema.get("format", "date") not in _FORMATS:
        return False
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if ("object" in kinds or "properties" in schema) and not _is_closed(schema):
        return False
    if "array" in kinds and "items" not in schema:
        return False
    return all(_is_supported(inner) for inner in _inner(schema))


def _is_closed(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.get("additionalProperties") is not False:
        return False
    return set(schema.get("required", ())) == properties.keys()


def _inner(schema: Mapping[str, Any]) -> Iterator[JSONValue]:
    for keyword in ("properties", "$defs"):
        yield from schema.get(keyword, {}).values()
    yield from schema.get("anyOf", ())
    if "items" in schema:
        yield schema["items"]
