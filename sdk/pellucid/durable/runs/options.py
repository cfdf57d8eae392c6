"""Checks of the options of `DurableRuns`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, get_args

from pellucid.agent import Agent
from pellucid.caller_checks import not_an_identity
from pellucid.context import Identity
from pellucid.durable.callbacks.options import Callbacks
from pellucid.durable.runs.conversations import Conversations
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.states.records import StreamMode
from pellucid.errors import ConfigError
from pellucid.text import excerpt

_OBJECTS: Final[Mapping[str, tuple[type[Any], str]]] = {
    "retry": (RetryPolicy, "RetryPolicy(max_attempts=...)"),
    "callbacks": (Callbacks, "Callbacks([key], allow=[url])"),
    "completion": (Completion, "Completion(url, tokens)"),
}
"""Classes of options, each with an example."""


def check_options(
    lease: Any,
    poll: Any,
    max_expired_leases: int | None,
    conversations: Conversations,
    stream: StreamMode,
    **objects: object,
) -> None:
    """Check options of `DurableRuns`; `objects` may be None.

    Raises:
        ConfigError: one is not valid.
    """
    for name, value in (("lease", lease), ("poll", poll)):
        if not (isinstance(value, int | float) and value > 0):
            raise ConfigError(f"DurableRuns({name}={value!r}): must be a number of seconds above 0")
    if max_expired_leases is not None:
        checked(max_expired_leases, "DurableRuns", "max_expired_leases", ", or None")
    if conversations not in get_args(Conversations):
        raise ConfigError(f"DurableRuns(conversations={conversations!r}): must be 'refuse' or 'queue'")
    if stream not in get_args(StreamMode):
        raise ConfigError(f"DurableRuns(stream={stream!r}): must be 'read', 'always' or 'never'")
    for name, value in objects.items():
        kind, example = _OBJECTS[name]
        if not (value is None or isinstance(value, kind)):
            raise ConfigError(f"DurableRuns({name}={excerpt(repr(value))}): give {example}, or None")


def checked(number: Any, function: str, option: str, or_else: str = "") -> int:
    """Return a number, the option of a function.

    Raises:
        ConfigError: it is less than 1, or not whole.
    """
    if isinstance(number, int) and number >= 1:
        return number
    raise ConfigError(f"{function}({option}={excerpt(repr(number))}): must be a whole number from 1{or_else}")


def checked_name(agent: object, identity: object, known: Collection[str]) -> str:
    """Return the name of the agent of a run that is submitted.

    Raises:
        ConfigError: there is no such agent, or the identity is none.
    """
    name = agent.name if isinstance(agent, Agent) else agent
    if not (isinstance(name, str) and name):
        raise ConfigError(f"submit(agent={excerpt(repr(agent))}): must be an Agent, or the name of one")
    if known and name not in known:
        raise ConfigError(f"unknown agent {name!r}; known agents are {', '.join(map(repr, known))}")
    if not isinstance(identity, Identity | None):
        raise not_an_identity(identity, "run")
    return name


def by_name(agents: Any) -> dict[str, Agent[Any, Any]]:
    """Return agents by name.

    Raises:
        ConfigError: one is not an agent, or two have the same.
    """
    listed: list[Any] = list(agents) if isinstance(agents, Iterable) else [None]
    if not all(isinstance(agent, Agent) for agent in listed):
        raise ConfigError(f"DurableRuns(agents={excerpt(repr(agents))}): must be Agent objects; give a list of them")
    by_name = {agent.name: agent for agent in listed}
    if len(by_name) < len(listed):
        names = [agent.name for agent in listed]
        raise ConfigError(f"DurableRuns: two agents have the same name in {names}; rename one of them")
    return by_name
