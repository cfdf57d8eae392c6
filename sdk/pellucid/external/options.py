"""Options of a configured tool: those that every tool has, and those of its factory."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pellucid.errors import ConfigError
from pellucid.tools import Tool

Factory: TypeAlias = Callable[..., Tool]
"""Creates a tool. Its only parameter, if it has one, is annotated with a subclass of `ToolOptions`."""


class ToolOptions(BaseModel):
    """Base of the options of one tool: camelCase names in the configuration, unknown names refused, values frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=False, validate_by_alias=True, extra="forbid", frozen=True
    )


class Common(ToolOptions):
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


_COMMON = frozenset(field.alias or name for name, field in Common.model_fields.items())


def options_type(name: str, factory: Factory) -> type[ToolOptions]:
    """Return the class of a factory's options.

    Raises:
        ConfigError: its parameter is not annotated with a subclass of `ToolOptions`.
    """
    parameters = list(inspect.signature(factory).parameters)
    if not parameters:
        return ToolOptions
    kind = get_type_hints(factory).get(parameters[0])
    if len(parameters) > 1 or not isinstance(kind, type) or not issubclass(kind, ToolOptions):
        raise ConfigError(
            f"factories[{name!r}]: its only parameter must be annotated with a subclass of "
            "pellucid.external.ToolOptions"
        )
    return kind


def read_options(path: str, entry: Mapping[str, Any], kind: type[ToolOptions]) -> tuple[Common, ToolOptions]:
    """Return the common options and the tool's own.

    Raises:
        OptionErrors: options are unknown or have wrong values.
    """
    problems: list[str] = []
    common, own = (
        _read(path, model, {name: value for name, value in entry.items() if (name in _COMMON) is shared}, problems)
        for model, shared in ((Common, True), (kind, False))
    )
    if common is None or own is None:
        raise OptionErrors(problems)
    return common, own


class OptionErrors(Exception):
    """Problems of one entry.

    Attributes:
        problems: One line for each, which starts with the path of the option.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _read(path: str, model: type[Any], values: Mapping[str, Any], problems: list[str]) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()] + sorted(_COMMON)
        for fault in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, (path, *fault["loc"])))
            if fault["type"] == "extra_forbidden":
                problems.append(f"{place}: unknown option; {suggestion(str(fault['loc'][-1]), known)}")
            else:
                problems.append(f"{place}: {fault['msg'][:1].lower()}{fault['msg'][1:]}")
        return None


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the nearest right name, or all of them."""
    names = list(dict.fromkeys(names))
    close = difflib.get_close_matches(name.lower(), {other.lower(): other for other in names}, n=1)
    nearest = next((other for other in names if close and other.lower() == close[0]), None)
    return f"did you mean {nearest!r}?" if nearest is not None else f"use one of {', '.join(sorted(names))}"
