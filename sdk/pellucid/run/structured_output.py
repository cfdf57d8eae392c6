"""Structured output: an answer that is a value of a given type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, cast

from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from typing_extensions import TypeForm, TypeVar

from pellucid.errors import ConfigError
from pellucid.messages import Message, ServerToolCall, ServerToolResult
from pellucid.models import ModelRequest, OutputSchema
from pellucid.types import JSONObject, JSONValue

OutputT = TypeVar("OutputT", default=str)
"""The type of an agent's answers: text, unless `Agent(output=)` says otherwise."""

_FENCE = "```"


class Mismatch(Exception):
    """An answer is not of the type that was asked for; the text says what is wrong, in words for the model."""


class Output(Generic[OutputT]):
    """The type that an agent's answers must have.

    Vendors want an object: a type that is none (a list, a number, a union) travels as the member `result` of one.

    Attributes:
        schema: What models are asked for. Objects in it are closed, so that vendors can hold a model to it.

    Raises:
        ConfigError: pydantic cannot make a JSON Schema of the type.
    """

    def __init__(self, kind: type[OutputT] | TypeForm[OutputT]) -> None:
        self.name = getattr(kind, "__name__", None) or str(kind)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
            self._wrapped: type[BaseModel] | None = None
            if schema.get("type") != "object" or "properties" not in schema:
                self._wrapped = create_model("Output", result=(kind, ...))
                schema = self._wrapped.model_json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ConfigError(
                f"Agent(output={self.name}): pydantic cannot make a JSON Schema of this type: {error.message}"
            ) from error
        self.schema = OutputSchema(
            name=re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:64],
            schema=_closed(schema),
            description=schema.get("description"),
        )

    def parse(self, text: str) -> OutputT:
        """Return the value that an answer says.

        Raises:
            Mismatch: it is not of the type.
        """
        document = _unfenced(text)
        try:
            if self._wrapped is None:
                return cast("OutputT", self._adapter.validate_json(document))
            return cast("OutputT", vars(self._wrapped.model_validate_json(document))["result"])
        except ValidationError as error:
            if self._wrapped is None:
                raise Mismatch(_problems(error)) from error
            in_object = error
        # Models that were only told of the schema often leave the object out.
        try:
            return cast("OutputT", self._adapter.validate_json(document))
        except ValidationError as error:
            meant = _meant(in_object, error)
            raise Mismatch(_problems(meant)) from meant


def said(answer: Message) -> str:
    """Return the text that holds the value: with tools that the vendor ran, what comes after the last of them."""
    ran = [index for index, part in enumerate(answer.parts) if isinstance(part, ServerToolCall | ServerToolResult)]
    last = Message(answer.role, answer.parts[ran[-1] + 1 :]) if ran else answer
    return last.text or answer.text


def prompted(request: ModelRequest) -> ModelRequest:
    """Return the request for a model that has no parameter for the output's schema: it is put into the instructions."""
    if request.output is None:
        return request
    asked = (
        "Give your final answer as one JSON value that matches this JSON Schema, and nothing else:\n"
        f"{json.dumps(request.output.schema, ensure_ascii=False)}"
    )
    instructions = f"{request.instructions}\n\n{asked}" if request.instructions else asked
    return replace(request, instructions=instructions)


def repair(problem: str) -> str:
    """Return what a model is told about an answer that does not fit."""
    return f"That answer does not match the JSON Schema of the output: {problem}\nAnswer again with valid JSON only."


def _unfenced(text: str) -> str:
    """Return what is inside the Markdown fence around an answer, if there is one."""
    stripped = text.strip()
    if not (stripped.startswith(_FENCE) and stripped.endswith(_FENCE)):
        return text
    language, _, inside = stripped.removeprefix(_FENCE).removesuffix(_FENCE).partition("\n")
    return inside if language.strip().lower() in ("", "json") else text


def _meant(in_object: ValidationError, bare: ValidationError) -> ValidationError:
    """Return which of two failures tells more: of the value within an object, or of what came as the value itself."""
    found = in_object.errors(include_url=False, include_input=False, include_context=False)
    has_result = all(each["loc"] and (each["loc"], each["type"]) != (("result",), "missing") for each in found)
    # At no place at all means that the answer as a whole is something else.
    is_bare = not has_result and any(each["loc"] for each in bare.errors(include_url=False, include_input=False))
    return bare if is_bare else in_object


def _problems(error: ValidationError) -> str:
    """Return what is wrong, without repeating what the model said."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(str(step) for step in each['loc']) or 'the answer'}: {each['msg']}" for each in found[:10]]
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more")
    return "; ".join(lines)


def _closed(schema: JSONValue) -> Any:
    """Return a schema in which no object takes other members than those it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: JSONObject = {key: _closed(value) for key, value in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), Mapping):
        closed.setdefault("additionalProperties", False)
    return closed
