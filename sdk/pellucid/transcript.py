"""Conversations as plain JSON, and back: whole, with what vendors want returned to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, get_args

from pydantic import TypeAdapter, ValidationError

from pellucid.errors import ConfigError
from pellucid.messages import Message, Part, Role, ToolResult
from pellucid.types import JSONObject, JSONValue

_KINDS: Final[Mapping[str, type[Any]]] = {kind.type: kind for kind in get_args(Part)}
_ROLES: Final = get_args(Role)


def dump_messages(messages: Sequence[Message]) -> list[JSONValue]:
    """Return messages as JSON-able data, such as the `history` of the next run that a database keeps.

    Unlike what is recorded in telemetry, this is complete and not redacted. `load_messages` is its inverse.
    """
    return [_dump_message(message) for message in messages]


def load_messages(data: object) -> tuple[Message, ...]:
    """Return the messages that `dump_messages` made this data of.

    Raises:
        ConfigError: it is something else; the text says where.
    """
    return tuple(_load_message(item, f"messages[{n}]") for n, item in enumerate(_list(data, "messages")))


def dump_part(part: Part) -> JSONObject:
    """Return a part of a message as JSON-able data."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    kept = {name: value for name, value in values.items() if value is not None or name == "response"}
    if isinstance(part, ToolResult) and isinstance(part.response, tuple):
        kept["response"] = None
        kept["content"] = [dump_part(each) for each in part.response]
    return {"type": part.type, **kept}


def load_part(data: object, where: str) -> Part:
    """Return the part that `dump_part` made this data of.

    Raises:
        ConfigError: it is something else.
    """
    values = dict(_object(data, where))
    kind = _KINDS.get(str(values.pop("type", None)))
    if kind is None:
        raise ConfigError(f"{where}: its type is none of {', '.join(_KINDS)}")
    if kind is ToolResult and (content := values.pop("content", None)) is not None:
        parts = enumerate(_list(content, f"{where}.content"))
        values["response"] = tuple(load_part(each, f"{where}.content[{n}]") for n, each in parts)
    try:
        part: Part = _adapter(kind.type).validate_python(values)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(f"{where}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    return part


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def _dump_message(message: Message) -> JSONObject:
    shape: JSONObject = {"role": message.role, "parts": [dump_part(part) for part in message.parts]}
    if message.finish_reason is not None:
        shape["finish_reason"] = message.finish_reason
    return shape


def _load_message(data: object, where: str) -> Message:
    shape = _object(data, where)
    role: Any = shape.get("role")
    if role not in _ROLES:
        raise ConfigError(f"{where}: its role is none of {', '.join(_ROLES)}")
    parts = enumerate(_list(shape.get("parts"), f"{where}.parts"))
    loaded = [load_part(part, f"{where}.parts[{n}]") for n, part in parts]
    return Message(role, loaded, finish_reason=shape.get("finish_reason"))


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a JSON object is missing")
    return data


def _list(data: object, where: str) -> Sequence[object]:
    if not isinstance(data, list):
        raise ConfigError(f"{where}: a list is missing")
    return data
