"""JSON Schema of Python signatures, and arguments of the annotated types.

Loads pydantic; imported when the first function becomes a tool.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import docstring_parser
from docstring_parser import Docstring, ParseError
from docstring_parser.google import GoogleParser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from pellucid.errors import ConfigError
from pellucid.tools.functions import is_async, name_of, unwrapped
from pellucid.tools.hints import hints_of
from pellucid.tools.schema import MAX_ISSUES, path_of
from pellucid.types import JSONObject

MOST_TYPES: Final = 1024
"""Maximum number of types whose schemas are kept."""

_OWN_KEYS: Final = frozenset({"$ref", "default", "description", "title"})
"""Keywords of a type's schema that pydantic merges with those of a parameter."""

_UNSTRUCTURED: Final = (Any, str, type(None), bool, int, float, bytes, object, dict, list)
"""Frequent types of results that have no output schema."""

_GOOGLE: Final = GoogleParser()

_OTHER_STYLES: Final = re.compile(r"^\s*(?:[:@.]|-{3})", re.MULTILINE)
"""Beginning of a line in a Sphinx, Epydoc or NumPy docstring."""


class _Parameter(NamedTuple):
    """Parameter of a function: its type hint, its default (`...` if it has none), and its docstring.

    The hint may have pydantic's `Field` in `Annotated`, and the default may be one.
    """

    hint: Any
    default: Any
    description: str | None


@dataclass(frozen=True, eq=False)
class Signature:
    """Signature of a Python function for a tool.

    Attributes:
        name: Name of the function.
        description: The docstring without its parameter section.
        parameters: Parameters by name, without the context.
        context_parameter: Name of the parameter that receives the context, or None.
        returns: Type hint of the result; None if it says nothing of its structure.
    """

    name: str
    description: str
    parameters: Mapping[str, _Parameter]
    context_parameter: str | None
    returns: Any

    @cached_property
    def input_schema(self) -> JSONObject:
        """JSON Schema of the arguments.

        Raises:
            ConfigError: a type has no JSON Schema, or two parameters have one alias.
        """
        try:
            schema = _assembled(self.parameters)
            if schema is None:
                schema = self._model.model_json_schema(schema_generator=Untitled)
                schema.pop("title", None)
        except PydanticUserError as error:
            raise ConfigError(f"tool {self.name!r}: a parameter's type has no JSON Schema: {error.message}") from error
        if len(schema["properties"]) < len(self.parameters):
            names = ", ".join(self.parameters)
            raise ConfigError(f"tool {self.name!r}: two of its parameters ({names}) have one alias; change it")
        return schema

    def bind(self, arguments: JSONObject, ctx: object = None) -> dict[str, Any]:
        """Convert JSON arguments to keyword arguments of the annotated types, and add the context.

        Raises:
            ValueError: an argument does not match its type; the message does not repeat values.
        """
        try:
            bound = self._model.model_validate(arguments)
        except ValidationError as error:
            issues = error.errors(include_url=False, include_context=False, include_input=False)
            text = "; ".join(f"{path_of(issue['loc'])}: {issue['msg']}" for issue in issues[:MAX_ISSUES])
            raise ValueError(text) from None
        values = vars(bound)  # not `getattr`, which warns of deprecated fields
        keywords = {name: values[field] for name, field in zip(self.parameters, type(bound).model_fields, strict=True)}
        return keywords if self.context_parameter is None else {**keywords, self.context_parameter: ctx}

    def bound(self, function: Callable[..., Any]) -> Callable[[JSONObject, Any], Any]:
        """Return a function of arguments and context, which calls `function` with the keyword arguments of `bind`."""

        def run(arguments: JSONObject, ctx: object) -> Any:
            return function(**self.bind(arguments, ctx))

        async def run_async(arguments: JSONObject, ctx: object) -> Any:
            return await function(**self.bind(arguments, ctx))

        return run_async if is_async(function) else run

    @cached_property
    def _model(self) -> type[BaseModel]:
        """Pydantic model of the arguments, made for the first call unless the schema needs it."""
        # Pydantic reserves some field names (`json`, `schema`, `_x`); an alias may be any name.
        fields = {f"p{number}": _field(name, each) for number, (name, each) in enumerate(self.parameters.items())}
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)


def _field(name: str, parameter: _Parameter) -> Any:
    """Return the definition of a model's field, in which a `Field` of the parameter wins over name and docstring."""
    hint, default, description = parameter
    own = Field(alias=name) if description is None else Field(alias=name, description=description)
    is_annotated = typing.get_origin(hint) is typing.Annotated
    kind, *metadata = (hint.__origin__, *hint.__metadata__) if is_annotated else (hint,)
    # Pydantic merges from left to right, and the default last.
    annotation: Any = typing.Annotated[(kind, own, *metadata)]
    return annotation if default is ... else (annotation, default)


def signature_of(function: Callable[..., Any], *, context_type: type) -> Signature:
    """Read a function's parameters, types and docstring.

    A parameter annotated with `context_type` is omitted from the schema.

    Raises:
        ConfigError: the function takes `*args`, `**kwargs` or positional-only parameters, or a type has no JSON Schema.
    """
    name, source = name_of(function), unwrapped(function)
    try:
        hints = hints_of(source)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise ConfigError(f"tool {name!r}: its type hints cannot be resolved: {error}") from error
    doc = _parsed(source.__doc__ or inspect.getdoc(source) or "")
    described = {param.arg_name: param.description for param in doc.params}
    context_parameter = None
    parameters: dict[str, _Parameter] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter} has no JSON Schema; use named parameters only")
        hint = hints.get(parameter.name, Any)
        if hint is context_type or typing.get_origin(hint) is context_type:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        parameters[parameter.name] = _Parameter(hint, default, described.get(parameter.name))
    returns, description = hints.get("return"), (doc.description or "").strip()
    returns = None if any(returns is kind for kind in _UNSTRUCTURED) else returns
    signature = Signature(name, description, parameters, context_parameter, returns)
    signature.input_schema  # noqa: B018  (evaluated to find a type without a schema)
    return signature


def _parsed(docstring: str) -> Docstring:
    """Parse a docstring: as Google's if it can be no other, because trying all styles takes three times as long."""
    if not _OTHER_STYLES.search(docstring):
        with suppress(ParseError):
            return _GOOGLE.parse(docstring)
    return docstring_parser.parse(docstring)


def _assembled(parameters: Mapping[str, _Parameter]) -> JSONObject | None:
    """Return the schema of an object with these properties; None if only a model of all of them has one.

    It is the one that pydantic generates, keys in the same order, for a tenth of the time.
    """
    properties: JSONObject = {}
    for name, (hint, default, description) in parameters.items():
        try:
            schema = _schema_of(hint, repr(hint))
        except TypeError:  # the hint has no hash
            return None
        if schema is None or not (default is ... or _is_plain(default)):
            return None
        own = {} if default is ... else {"default": default}
        if description is not None:
            own["description"] = description
        properties[name] = dict(sorted({**schema, **own}.items()))
    required = [name for name, parameter in parameters.items() if parameter.default is ...]
    requirement = {"required": required} if required else {}
    return {"additionalProperties": False, "properties": properties, **requirement, "type": "object"}


@lru_cache(MOST_TYPES)
def _schema_of(hint: Any, spelled: str) -> JSONObject | None:
    """Return the schema of a type; None if it is merged with that of its parameter, or has definitions.

    Args:
        hint: The type.
        spelled: Its `repr`: types that differ only in the order of a union are equal, but have different schemas.
    """
    if typing.get_origin(hint) is typing.Annotated:
        return None
    schema = create_model("Parameter", value=(hint, ...)).model_json_schema(schema_generator=Untitled)
    value: JSONObject = schema["properties"]["value"]
    return None if "$defs" in schema or not _OWN_KEYS.isdisjoint(value) else value


def _is_plain(default: Any) -> bool:
    """Return whether a default is itself its JSON."""
    kind = type(default)
    return kind in (str, bool, int, type(None)) or (kind is float and math.isfinite(default))


class Untitled(GenerateJsonSchema):
    """JSON Schema without titles of properties, which only repeat the name and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: D102  (as in the base)
        return False
