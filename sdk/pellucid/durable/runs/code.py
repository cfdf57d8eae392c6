"""The code of an agent: whether a run goes on with the one with which it began."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias, get_args

from pellucid.agent import Agent, configuration_of
from pellucid.durable.store import Claim
from pellucid.durable.store.values import MAX_ID, is_storable
from pellucid.errors import ConfigError
from pellucid.run.state import Setup
from pellucid.tools.functions import name_of

OnChange: TypeAlias = Literal["continue", "wait"]
"""Treatment of a run whose agent has changed: another version continues it, or it waits for the same one."""

DIGEST: Final = "agent_digest"
"""Member of journal entries and checkpoints: digest of the agent that wrote them."""


def digest_of(setup: Setup) -> str:
    """Return the digest of an agent: its model, instructions, and what the model sees of the tools of `tools`.

    What providers list is not in it, nor what the code of tools and of functions of the instructions does.
    """
    tools = sorted((tool.name, tool.digest.hex()) for tool in setup.tools)
    functions = [name_of(function) for function in setup.varying]
    content = json.dumps([setup.model.name, setup.instructions, functions, tools])
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def previous_digest(claim: Claim) -> str | None:
    """Return the digest of the agent that has written the latest step of a run, if it is known."""
    states: list[Any] = [claim.run.checkpoint, *(entry.value for entry in claim.journal)]
    digests = [state[DIGEST] for state in states if isinstance(state, Mapping) and DIGEST in state]
    return str(digests[-1]) if digests else None


def versions_of(agents: Mapping[str, Agent[Any, Any]], on_change: OnChange, version: Any) -> Mapping[str, str] | None:
    """Return the version of each agent to which runs are pinned; None if they are not.

    Raises:
        ConfigError: an option has another value.
    """
    if on_change not in get_args(OnChange):
        raise ConfigError(f"DurableRuns(on_change={on_change!r}): must be 'continue' or 'wait'")
    if version is not None and not (isinstance(version, str) and version and is_storable(version)):
        raise ConfigError(f"DurableRuns(version={version!r}): must be 1 to {MAX_ID} printable characters")
    if version is None and on_change == "continue":
        return None
    return {name: version or digest_of(configuration_of(agent).setup) for name, agent in agents.items()}
