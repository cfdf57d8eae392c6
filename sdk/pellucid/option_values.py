"""Check of the values of an agent's options: what is wrong with one, and what to give instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from os import PathLike
from typing import Any, Final, get_args

from pellucid.context import Limits
from pellucid.errors import ConfigError
from pellucid.models import Settings
from pellucid.selection.policy import Permission
from pellucid.text import excerpt
from pellucid.tools import Tool
from pellucid.tools.catalog import RegistryMode
from pellucid.tools.collisions import Collisions


def check_values(agent: str, options: Mapping[str, Any]) -> None:
    """Check the values of an agent's options.

    Args:
        agent: The agent, as errors name it.
        options: The options, with the model itself.

    Raises:
        ConfigError: an option has a value that it does not take.
    """
    for option, value in options.items():
        if (problem := _PROBLEMS[option](value) if option in _PROBLEMS else None) is not None:
            raise ConfigError(f"{agent}: {problem}")
    if options.get("context") is not None:
        from pellucid.compaction.windows import check_window

        check_window(agent, options["context"], options["model"], options.get("settings") or {})


def _instructions(value: Any) -> str | None:
    if value is None or isinstance(value, str) or callable(value):
        return None
    if not isinstance(value, Iterable):
        return f"{_shown('instructions', value)} is not a text; give one, a function of the context, or a list of both"
    return _items("instructions", "texts and functions", _no_instruction)(value)


def _no_instruction(item: Any) -> str | None:
    is_one = isinstance(item, str) or callable(item)
    return None if is_one else "neither a text nor a function; give one of them"


def _settings(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return f"{_shown('settings', value)} is not a dictionary; give one, such as {{'temperature': 0.2}}"
    if isinstance(value.get("stop_sequences"), str):
        return "the setting stop_sequences must be a list of texts, not one text"
    known = Settings.__annotations__
    for name in value:
        if name not in known:
            hint = get_close_matches(str(name), known, 1)
            return (
                f"unknown setting {name!r}; {f'did you mean {hint[0]!r}? ' if hint else ''}"
                f"known settings are {', '.join(known)}; settings of a single vendor go into `extra`"
            )
    return None


def _limits(value: Any) -> str | None:
    if value is None or isinstance(value, Limits):
        return None
    given = ", ".join(f"{name}={item!r}" for name, item in value.items()) if isinstance(value, Mapping) else "..."
    return f"{_shown('limits', value)} is not a Limits object; give Limits({given})"


def _budget(value: Any) -> str | None:
    from pellucid.budgets.budget import NOT_A_BUDGET, budgets_of

    return None if callable(value) or budgets_of(value) is not None else f"{_shown('budget', value)} {NOT_A_BUDGET}"


def _policy(value: Any) -> str | None:
    if value is None or callable(value):
        return None
    answer = repr(value) if value in get_args(Permission) else "'allow'"
    return f"{_shown('policy', value)} is not a function; give one of a PermissionRequest, such as lambda _: {answer}"


def _no_tool(item: Any) -> str | None:
    if isinstance(item, Tool) or callable(item):
        return None
    if hasattr(item, "list_tools"):
        return "not a tool but a provider; give it as providers=[...]"
    if hasattr(item, "as_tool"):
        return "not a tool but an agent; give what its as_tool() returns"
    if hasattr(item, "body"):
        return "not a tool but a skill; give it as skills=[...]"
    return "not a tool; give a Tool or a function"


def _no_provider(item: Any) -> str | None:
    if callable(getattr(item, "list_tools", None)):
        return None
    if hasattr(item, "fetch_catalog"):
        return "not a tool provider but a hub; give DiscoveryProvider(hub, id='...')"
    if isinstance(item, Tool) or callable(item):
        return "not a tool provider; plain tools go to Agent(tools=...) or static_tools()"
    return "not a tool provider; it needs a non-empty `id` and `list_tools(ctx)`"


def _no_skill(item: Any) -> str | None:
    return None if hasattr(item, "body") else "not a skill; give Skill('id', 'description', 'instructions')"


def _items(option: str, kind: str, problem_of: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        if not isinstance(value, Iterable):
            return f"{_shown(option, value)} is not a sequence; give a list of {kind}"
        for index, item in enumerate(value):
            if (problem := problem_of(item)) is not None:
                return f"{_shown(f'{option}[{index}]', item)} is {problem}"
        return None

    return problem


def _prices(value: Any) -> str | None:
    if value is None or callable(value):
        return None
    return (
        "prices must be a function of provider, model and usage; for fixed prices use "
        "PriceTable({'openai:gpt-6-sol': Price(input=..., output=...)})"
    )


def _collisions(value: Any) -> str | None:
    if value in (policies := get_args(Collisions)):
        return None
    return f"unknown collision policy collisions={value!r}; use one of {', '.join(map(repr, policies))}"


def _registry_mode(value: Any) -> str | None:
    return None if value in get_args(RegistryMode) else f"unknown registry_mode {value!r}; use 'full' or 'lazy'"


def _having(option: str, attribute: str, problem: str) -> Callable[[Any], str | None]:
    """Return the check of an option whose values have an attribute, or are None."""
    return lambda value: None if value is None or hasattr(value, attribute) else f"{_shown(option, value)} {problem}"


def _switch(option: str) -> Callable[[Any], str | None]:
    return lambda value: (
        None if isinstance(value, bool) else f"{_shown(option, value)} is not True or False; give one of them"
    )


def _shown(option: str, value: object) -> str:
    return f"{option}={excerpt(repr(value))}"


_PROBLEMS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "instructions": _instructions,
    "settings": _settings,
    "tools": _items("tools", "tools and functions", _no_tool),
    "providers": _items("providers", "tool providers", _no_provider),
    "skills": _items("skills", "skills", _no_skill),
    "limits": _limits,
    "budget": _budget,
    "policy": _policy,
    "telemetry": _having(
        "telemetry", "tracer_provider", "is no destination of telemetry; give what configure() returns"
    ),
    "description": _having("description", "lower", "is not a text; give one"),
    "version": _having("version", "lower", "is not a text; give one, such as '1.4.0'"),
    "prices": _prices,
    "reliability": _having(
        "reliability", "circuit_of", "is not a Reliability object; give Reliability([Rule(...), ...])"
    ),
    "collisions": _collisions,
    "registry_mode": _registry_mode,
    "pin": _switch("pin"),
    "lock": lambda value: (
        None if isinstance(value, str | PathLike | None) else f"{_shown('lock', value)} is not a path; give one"
    ),
    "on_change": lambda value: (
        None if value in ("refuse", "report") else f"unknown on_change={value!r}; use 'refuse' or 'report'"
    ),
    "on_stale": lambda value: (
        None if value in ("serve", "fail") else f"unknown on_stale={value!r}; use 'serve' or 'fail'"
    ),
    "context": _having("context", "strategies", "is not a Context object; give Context(window=...)"),
    "scorers": _items("scorers", "scorers", lambda item: None if callable(item) else "not a function; give one"),
    "warm": _switch("warm"),
}
"""The check of each option, which returns the problem of a value, with its remedy, or None."""
