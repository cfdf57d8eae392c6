"""JSON Schema of Python signatures, and validation of the arguments that a model wrote."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import docstring_parser
import jsonschema_rs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from pellucid.errors import ConfigError
from pellucid.types import JSONObject

MAX_ISSUES = 10
"""Maximum number of issues reported for one set of arguments; a model needs no more to correct itself."""


class Signature(NamedTuple):
    """Signature of a Python function for a tool.

    Attributes:
        description: The docstring without its parameter section.
        input_schema: JSON Schema of the arguments.
        context_parameter: Name of the parameter that receives the context, or None.
        model: Pydantic model of the arguments.
    """

    description: str
    input_schema: JSONObject
    context_parameter: str | None
    model: type[BaseModel]

    def bind(self, arguments: JSONObject, ctx: object = None) -> dict[str, Any]:
        """Convert JSON arguments to keyword arguments of the annotated types, and add the context.

        Raises:
            ValueError: an argument does not match its type; the message does not repeat values.
        """
        try:
            bound = self.model.model_validate(arguments)
        except ValidationError as error:
            issues = error.errors(include_url=False, include_context=False, include_input=False)
            text = "; ".join(f"{_path(issue['loc'])}: {issue['msg']}" for issue in issues[:MAX_ISSUES])
            raise ValueError(text) from None
        keywords = {field.alias or name: getattr(bound, name) for name, field in type(bound).model_fields.items()}
        return keywords if self.context_parameter is None else {**keywords, self.context_parameter: ctx}


def signature_of(function: Callable[..., Any], *, context_type: type) -> Signature:
    """Read a function's parameters, types and docstring.

    A parameter annotated with `context_type` is omitted from the schema.

    Raises:
        ConfigError: the function takes `*args`, `**kwargs` or positional-only parameters, or a type has no JSON Schema.
    """
    name, unwrapped = name_of(function), _unwrapped(function)
    try:
        hints = typing.get_type_hints(unwrapped, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name!r}: its type hints cannot be resolved: {error}") from error
    doc = docstring_parser.parse(inspect.getdoc(unwrapped) or "")
    described = {param.arg_name: param.description for param in doc.params}
    context_parameter = None
    model_fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter} has no JSON Schema; use named parameters only")
        hint = hints.get(parameter.name, Any)
        if hint is context_type:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Pydantic reserves some field names (`json`, `schema`, `_x`); an alias may be any name.
        field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        model_fields[f"p{len(model_fields)}"] = (hint, field)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **model_fields)
        schema = model.model_json_schema(schema_generator=_Untitled)
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: a parameter's type has no JSON Schema: {error.message}") from error
    schema.pop("title", None)
    return Signature((doc.description or "").strip(), schema, context_parameter, model)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable object."""
    unwrapped = _unwrapped(function)
    source = function if unwrapped.__name__ == "__call__" else unwrapped
    return str(getattr(source, "__name__", type(source).__name__))


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` returns a coroutine; looks inside `partial` and at `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_unwrapped(function))


def _unwrapped(function: Callable[..., Any]) -> Any:
    """Return the function with the type hints and the docstring: inside `partial`, or `__call__` of other objects."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


class _Untitled(GenerateJsonSchema):
    """JSON Schema without titles of properties, which only repeat the name and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Validator:
    """Validator of arguments against a JSON Schema (drafts 4 to 2020-12).

    Raises:
        ValueError: the schema is invalid, does not describe an object, or has references to other documents.
    """

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('the schema must be a JSON object with "type": "object"')
        try:
            self._validator = jsonschema_rs.validator_for(schema, mask="the value", retriever=_refuse)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(str(error).split("\n", 1)[0]) from error

    def issues(self, arguments: JSONObject) -> Sequence[str]:
        """Return the issues of `arguments`, one line each and without values; empty if the arguments are valid."""
        if self._validator.is_valid(arguments):
            return ()
        try:
            errors = list(islice(self._validator.iter_errors(arguments), MAX_ISSUES))
        except UnicodeEncodeError:
            return ("arguments: a string contains an unpaired surrogate, which is not a character",)
        return [f"{_path(error.instance_path)}: {error.message}" for error in errors]


def _refuse(uri: str) -> Any:
    """Refuse to fetch another schema: schemas come from hubs and are not trusted."""
    raise ValueError(f"the schema refers to {uri!r}; only references within the schema are allowed")


def _path(location: Sequence[str | int]) -> str:
    return ".".join(str(key) for key in location) or "arguments"
