"""Checks of the options of `DurableRuns`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pellucid.agent import Agent
from pellucid.durable.callbacks.options import Callbacks
from pellucid.durable.runs.conversations import Conversations
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.states.records import StreamMode
from pellucid.errors import ConfigError
from pellucid.text import excerpt


def check_options(
    lease: Any, poll: Any, max_expired_leases: int | None, conversations: Conversations, stream: StreamMode
) -> None:
    """Check options of `DurableRuns`.

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


def check_objects(retry: object, callbacks: object, completion: object) -> None:
    """Check options of `DurableRuns` that are objects or None.

    Raises:
        ConfigError: one has another type.
    """
    for name, value, kind, example in (
        ("retry", retry, RetryPolicy, f"RetryPolicy(max_attempts={retry if isinstance(retry, int) else '...'})"),
        ("callbacks", callbacks, Callbacks, "Callbacks([key], allow=[url])"),
        ("completion", completion, Completion, "Completion(url, tokens)"),
    ):
        if not (value is None or isinstance(value, kind)):
            shown = excerpt(repr(value))
            raise ConfigError(f"DurableRuns({name}={shown}): must be a {kind.__name__} object, or None; give {example}")


def checked(number: Any, function: str, option: str, or_else: str = "") -> int:
    """Return a number, the option of a function.

    Raises:
        ConfigError: it is less than 1, or not whole.
    """
    if isinstance(number, int) and number >= 1:
        return number
    raise ConfigError(f"{function}({option}={excerpt(repr(number))}): must be a whole number from 1{or_else}")


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
