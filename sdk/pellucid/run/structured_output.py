"""Structured output: an answer that is a value of a given type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast

from pydantic_core import ValidationError
from typing_extensions import TypeForm

from pellucid.errors import ConfigError
from pellucid.messages import Message, ServerToolCall, ServerToolResult
from pellucid.models import ModelRequest, OutputSchema
from pellucid.text import excerpt
from pellucid.types import JSONObject, JSONValue, OutputT_co

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

_FENCE = "```"

REPAIR = "That answer does not match the JSON Schema of the output: "
"""Beginning of the message to the model about an answer that does not fit."""


class Mismatch(Exception):
    """An answer is not of the output type; the text describes the problem to the model."""


class Output(Generic[OutputT_co]):
    """Output type of an agent.

    Vendors require an object: other types (a list, a number, a union) are sent as the member `result` of an object.

    Attributes:
        schema: JSON Schema for models. Its objects are closed, so that vendors can enforce it.
        adapter: Validates values of the type.
        wrapped: The object around a type that is not one; None if it is.

    Raises:
        ConfigError: it is not a type, or pydantic cannot generate a JSON Schema for it.
    """

    def __init__(self, kind: type[OutputT_co] | TypeForm[OutputT_co]) -> None:
        from pydantic import PydanticUserError, TypeAdapter, create_model

        if isinstance(kind, Mapping):  # pydantic's own description of a type, whatever is in it
            raise ConfigError(f"Agent(output={excerpt(kind)}) is a dictionary; give a type, such as a pydantic model")
        self.name = getattr(kind, "__name__", None) or str(kind)
        try:
            self.adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self.adapter.json_schema()
            self.wrapped: type[BaseModel] | None = None
            if schema.get("type") != "object" or "properties" not in schema:
                self.wrapped = create_model("Output", result=(kind, ...))
                schema = self.wrapped.model_json_schema()
        except PydanticUserError as error:
            raise ConfigError(
                f"Agent(output={self.name}): pydantic cannot generate a JSON Schema for this type: {error.message}"
            ) from error
        self.schema = OutputSchema(
            name=re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:64],
            schema=_closed(schema),
            description=schema.get("description"),
        )

    def parse(self, text: str) -> OutputT_co:
        """Return the value of an answer.

        Raises:
            Mismatch: the answer is not of the type.
        """
        document, in_object = unfenced(text), None
        try:
            if self.wrapped is not None:
                return cast("OutputT_co", vars(self.wrapped.model_validate_json(document))["result"])
        except ValidationError as error:
            in_object = error
        # Models that know the schema only from their instructions often omit the object.
        try:
            return cast("OutputT_co", self.adapter.validate_json(document))
        except ValidationError as error:
            relevant = error if in_object is None else _relevant(in_object, error)
            raise Mismatch(_problems(relevant)) from relevant


def answer_text(answer: Message) -> str:
    """Return the text that holds the value: the text after the last tool that the vendor ran, if there is one."""
    used = [index for index, part in enumerate(answer.parts) if isinstance(part, ServerToolCall | ServerToolResult)]
    last = Message(answer.role, answer.parts[used[-1] + 1 :]) if used else answer
    return last.text or answer.text


def prompted(request: ModelRequest) -> ModelRequest:
    """Return a request with the output schema in its instructions, for a model without a parameter for it."""
    if request.output is None:
        return request
    prompt = (
        "Give your final answer as one JSON value that matches this JSON Schema, and nothing else:\n"
        f"{json.dumps(request.output.schema, ensure_ascii=False)}"
    )
    instructions = f"{request.instructions}\n\n{prompt}" if request.instructions else prompt
    return replace(request, instructions=instructions)


def repair_prompt(problem: str) -> str:
    """Return the message to the model about an answer that does not fit."""
    return f"{REPAIR}{problem}\nAnswer again with valid JSON only."


def unfenced(text: str) -> str:
    """Return an answer without the Markdown fence around it, if there is one."""
    stripped = text.strip()
    if not (stripped.startswith(_FENCE) and stripped.endswith(_FENCE)):
        return text
    language, _, inside = stripped.removeprefix(_FENCE).removesuffix(_FENCE).partition("\n")
    return inside if language.strip().lower() in ("", "json") else text


def _relevant(in_object: ValidationError, bare: ValidationError) -> ValidationError:
    """Return the more informative of two failures: of the value in an object, or of the answer as the bare value."""
    errors = in_object.errors(include_url=False, include_input=False, include_context=False)
    has_result = all(item["loc"] and (item["loc"], item["type"]) != (("result",), "missing") for item in errors)
    # An error without a location means that the whole answer has another type.
    is_bare = not has_result and any(item["loc"] for item in bare.errors(include_url=False, include_input=False))
    return bare if is_bare else in_object


def _problems(error: ValidationError) -> str:
    """Return a description of the validation errors, without the values."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(str(step) for step in item['loc']) or 'the answer'}: {item['msg']}" for item in errors[:10]]
    if len(errors) > len(lines):
        lines.append(f"and {len(errors) - len(lines)} more")
    return "; ".join(lines)


def _closed(schema: JSONValue) -> Any:
    """Return the schema with `additionalProperties: false` in every object with properties."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: JSONObject = {key: _closed(value) for key, value in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), Mapping):
        closed.setdefault("additionalProperties", False)
    return closed
