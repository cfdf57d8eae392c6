"""Options of a configured tool: those that every tool has, and those of its factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pellucid.errors import ConfigError
from pellucid.text import nearest
from pellucid.tools import Tool

Factory: TypeAlias = Callable[..., Tool]
"""Creates a tool. Its only positional parameter, if it has one, is annotated with a subclass of `ToolOptions`."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ToolOptions(BaseModel):
    """Base of the options of one tool.

    Names are in camelCase in the configuration. Unknown names are refused. Values are not converted: `"5"` is not a
    number. For types that TOML and JSON do not have, such as paths, set `model_config = ConfigDict(strict=False)`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


class SharedOptions(ToolOptions):
    """Options that every configured tool has.

    Attributes:
        enabled: Whether the tool is listed.
        needs_approval: Whether a person must approve each call; None leaves it to the tool.
        asynchronous: Whether calls run in the background (`async` in the configuration); None leaves it to the tool.
        execution: Where calls of an asynchronous tool run. Without `async`, it implies `async = true`.
    """

    enabled: bool = True
    needs_approval: bool | None = None
    asynchronous: bool | None = Field(default=None, alias="async")
    execution: Literal["same-invocation", "external-dispatch"] | None = None


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


_SHARED = frozenset(_names(SharedOptions))


def options_type(name: str, factory: Factory) -> type[ToolOptions] | None:
    """Return the class of a factory's options, or None if it has no positional parameter.

    Raises:
        ConfigError: it is not a function, or its parameter is not annotated with a subclass of `ToolOptions`.
    """
    if isinstance(factory, Tool):
        raise ConfigError(f"factories[{name!r}] is a tool; give a function that returns it")
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
    except (NameError, TypeError) as error:
        raise ConfigError(f"factories[{name!r}]: {error}") from error
    match [parameter.annotation for parameter in parameters if parameter.kind in _POSITIONAL]:
        case []:
            return None
        case [type() as kind] if issubclass(kind, ToolOptions):
            return kind
    raise ConfigError(
        f"factories[{name!r}]: its only parameter must be annotated with a subclass of pellucid.configured.ToolOptions"
    )


def read_options(
    path: str, entry: Mapping[str, Any], kind: type[ToolOptions] | None
) -> tuple[SharedOptions, ToolOptions]:
    """Return the options that every tool has, and those of the factory.

    Raises:
        ConfigError: options are unknown or have wrong values; one line for each.
    """
    kind = kind or ToolOptions
    names, problems = [*_names(kind), *sorted(_SHARED)], list[str]()
    shared = _read(path, SharedOptions, {name: entry[name] for name in entry if name in _SHARED}, names, problems)
    own = _read(path, kind, {name: entry[name] for name in entry if name not in _SHARED}, names, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return shared, own


def _read(path: str, model: type[Any], values: Mapping[str, Any], names: list[str], problems: list[str]) -> Any:
    """Return the validated options; add problems without the values, which may be secrets."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            text = f"{fault['msg'][:1].lower()}{fault['msg'][1:]}"
            if fault["type"] == "extra_forbidden":
                is_nested = len(fault["loc"]) > 1
                text = "unknown option" if is_nested else f"unknown option; {nearest(str(fault['loc'][0]), names)}"
            problems.append(f"{'.'.join(map(str, (path, *fault['loc'])))}: {text}")
