"""Checks of the options of `DurableRuns`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pellucid.agent import Agent
from pellucid.durable.runs.conversations import Conversations
from pellucid.durable.states.records import StreamMode
from pellucid.errors import ConfigError


def check_options(
    lease: float, poll: float, max_expired_leases: int | None, conversations: Conversations, stream: StreamMode
) -> None:
    """Check options of `DurableRuns`.

    Raises:
        ConfigError: one is not valid.
    """
    if not lease > 0 or not poll > 0:
        raise ConfigError(f"DurableRuns(lease={lease!r}, poll={poll!r}): both must be positive numbers of seconds")
    if max_expired_leases is not None and max_expired_leases < 1:
        raise ConfigError(f"DurableRuns(max_expired_leases={max_expired_leases!r}): must be at least 1, or None")
    if conversations not in get_args(Conversations):
        raise ConfigError(f"DurableRuns(conversations={conversations!r}): must be 'refuse' or 'queue'")
    if stream not in get_args(StreamMode):
        raise ConfigError(f"DurableRuns(stream={stream!r}): must be 'read', 'always' or 'never'")


def checked(concurrency: int) -> int:
    """Return a number of runs at the same time.

    Raises:
        ConfigError: it is less than 1.
    """
    if concurrency < 1:
        raise ConfigError(f"DurableRuns: concurrency={concurrency!r} must be at least 1")
    return concurrency


def by_name(agents: Iterable[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    """Return agents by name.

    Raises:
        ConfigError: two have the same.
    """
    listed = list(agents)
    by_name = {agent.name: agent for agent in listed}
    if len(by_name) < len(listed):
        names = [agent.name for agent in listed]
        raise ConfigError(f"DurableRuns: two agents have the same name in {names}; rename one of them")
    return by_name
