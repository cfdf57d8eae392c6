"""JSON Schema: made from Python signatures, and used to check arguments that a model wrote."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import docstring_parser
import jsonschema_rs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from pellucid.errors import ConfigError
from pellucid.types import JSONObject

MAX_ISSUES = 10
"""Issues reported for one set of arguments; a model does not need more to correct itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A Python function as a tool sees it.

    Attributes:
        description: The docstring without its parameter section.
        input_schema: JSON Schema of the arguments.
        context_parameter: Name of the parameter that takes the context, if there is one.
    """

    description: str
    input_schema: JSONObject
    context_parameter: str | None
    model: type[BaseModel]

    def bind(self, arguments: JSONObject) -> dict[str, Any]:
        """Turn JSON arguments into keyword arguments of the annotated types.

        Raises:
            ValueError: an argument is not what its type asks for; values are not repeated in the message.
        """
        try:
            bound = self.model.model_validate(arguments)
        except ValidationError as error:
            issues = error.errors(include_url=False, include_context=False, include_input=False)
            text = "; ".join(f"{_path(issue['loc'])}: {issue['msg']}" for issue in issues[:MAX_ISSUES])
            raise ValueError(text) from None
        return {field.alias or name: getattr(bound, name) for name, field in type(bound).model_fields.items()}


def signature_of(function: Callable[..., Any], *, context_type: type) -> Signature:
    """Read a function's parameters, types and docstring.

    A parameter annotated with `context_type` is left out of the schema.

    Raises:
        ConfigError: the function takes `*args`, `**kwargs` or positional-only parameters, or a type has no JSON Schema.
    """
    name, written = name_of(function), _written(function)
    try:
        hints = typing.get_type_hints(written, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name!r}: its type hints cannot be resolved: {error}") from error
    doc = docstring_parser.parse(inspect.getdoc(written) or "")
    described = {param.arg_name: param.description for param in doc.params}
    context_parameter = None
    model_fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter} cannot be described to a model; give it a name")
        hint = hints.get(parameter.name, Any)
        if hint is context_type:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Pydantic has names of its own that a field must not have (`json`, `schema`, `_x`); an alias may be anything.
        field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        model_fields[f"p{len(model_fields)}"] = (hint, field)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **model_fields)
        schema = model.model_json_schema(schema_generator=_Untitled)
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: a parameter's type has no JSON Schema: {error.message}") from error
    schema.pop("title", None)
    return Signature(
        description=(doc.description or "").strip(),
        input_schema=schema,
        context_parameter=context_parameter,
        model=model,
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name; that of the class for an object that can be called."""
    written = _written(function)
    named = function if written.__name__ == "__call__" else written
    return str(getattr(named, "__name__", type(named).__name__))


def _written(function: Callable[..., Any]) -> Any:
    """Return what has the type hints and the docstring: behind `partial`, and `__call__` of other objects."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


class _Untitled(GenerateJsonSchema):
    """JSON Schema without a title beside every property: it only repeats the name, and every token costs."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Validator:
    """Checks arguments against a JSON Schema (drafts 4 to 2020-12), which is refused here if it is not one.

    Raises:
        ValueError: the schema is broken, does not describe an object, or refers to something outside of itself.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('the schema must be a JSON object with "type": "object"')
        try:
            self._validator = jsonschema_rs.validator_for(schema, mask="the value", retriever=_refuse)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(str(error).split("\n", 1)[0]) from error

    def issues(self, arguments: JSONObject) -> Sequence[str]:
        """Return what is wrong with `arguments`, one line each, never repeating a value; empty if all is well."""
        if self._validator.is_valid(arguments):
            return ()
        try:
            errors = list(islice(self._validator.iter_errors(arguments), MAX_ISSUES))
        except UnicodeEncodeError:
            return ("arguments: a text holds half of a surrogate pair, which is no character",)
        return [f"{_path(error.instance_path)}: {error.message}" for error in errors]


def _refuse(uri: str) -> Any:
    """Refuse to fetch a schema from elsewhere: schemas come from hubs and are not trusted."""
    raise ValueError(f"the schema refers to {uri!r}; only references inside of it are followed")


def _path(location: Sequence[str | int]) -> str:
    return ".".join(str(step) for step in location) or "arguments"
