"""Checks of the arguments of a run, and names of options. A plain run imports it only when one is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.text import close_to, excerpt

MOST_TAGS: Final = 32
LONGEST_TAG: Final = 200
"""Characters."""

MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "Limits": {
        **dict.fromkeys(("max_turns", "max_steps", "max_rounds", "recursion_limit", "iterations"), "max_iterations"),
        **dict.fromkeys(("cost", "usd", "max_usd", "max_cost_usd", "max_budget_usd", "budget"), "max_cost"),
        **dict.fromkeys(("tokens", "total_tokens_limit", "token_limit"), "max_tokens"),
        **dict.fromkeys(("model_calls", "max_requests", "request_limit", "max_llm_calls"), "max_model_calls"),
        **dict.fromkeys(("tool_calls", "tool_calls_limit"), "max_tool_calls"),
    },
    "Budget": {
        **dict.fromkeys(("usd", "dollars", "amount", "limit", "max_cost", "max_usd"), "cost"),
        **dict.fromkeys(("max_tokens", "token_limit"), "tokens"),
        **dict.fromkeys(("calls", "requests", "max_model_calls"), "model_calls"),
        **dict.fromkeys(("period", "every", "interval"), "per"),
    },
    "Context": dict.fromkeys(("tokens", "max_tokens", "limit", "size", "context_window"), "window"),
}
"""Options that other names mean, by class."""


def check_identity(identity: Any) -> None:
    """Check the fields of an `Identity`.

    Raises:
        ConfigError: one is not a text.
    """
    for name in ("tenant", "principal", "conversation_id"):
        value = getattr(identity, name)
        if not (value is None or isinstance(value, str)):
            raise ConfigError(f"Identity({name}={excerpt(repr(value))}): must be a text, or None")


def not_an_identity(value: object, whose: str) -> ConfigError:
    """Return the error about an identity of a run or a session."""
    remedy = f"Identity(principal={value!r})" if isinstance(value, str) else "Identity(principal=...)"
    return ConfigError(f"identity={excerpt(repr(value))} of a {whose} is not an Identity; give {remedy}")


def not_a_signal(value: object) -> ConfigError:
    """Return the error about the signal of a run."""
    return ConfigError(f"signal={excerpt(repr(value))} of a run is not a CancelToken; give CancelToken()")


def not_a_policy(function: str, value: object) -> ConfigError:
    """Return the error about the option `capture` of a function."""
    remedy = f"CapturePolicy({value!r})" if isinstance(value, str) else "CapturePolicy()"
    return ConfigError(f"{function}(capture={excerpt(repr(value))}): must be a CapturePolicy; give {remedy}")


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Return the tags of a run, each once.

    Raises:
        ConfigError: they are no sequence of short texts, or too many.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ConfigError(f"tags={excerpt(repr(tags))} of a run: must be a sequence of texts, such as ('beta',)")
    for tag in tags:
        if not (isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG and tag.isprintable()):
            fault = f"{excerpt(repr(tag))} is not a text of 1 to {LONGEST_TAG} printable characters"
            raise ConfigError(f"tags of a run: {fault}")
    if len(found := tuple(dict.fromkeys(tags))) > MOST_TAGS:
        raise ConfigError(f"tags of a run: {len(found)} are too many; give at most {MOST_TAGS}")
    return found


def explain(cls: type[Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Say which option was meant by arguments that a class does not take; return if it takes them.

    Raises:
        TypeError: it does not.
    """
    known = list(signature(cls).parameters.values())
    named = [item.name for item in known if item.kind is Parameter.KEYWORD_ONLY]
    names = {item.name for item in known}
    for name, value in options.items():
        if name not in names:
            meant = MEANT[cls.__name__].get(name)
            remedy = f"use {meant}=" if meant else close_to(name, names) or f"options are {', '.join(named)}"
            raise TypeError(f"{cls.__name__}({name}={excerpt(repr(value))}): there is no option {name!r}; {remedy}")
    if extra := args[len(known) - len(named) :]:
        value = excerpt(repr(extra[0]))
        raise TypeError(f"{cls.__name__}({value}): options are given by name; use {named[0]}={value}")
