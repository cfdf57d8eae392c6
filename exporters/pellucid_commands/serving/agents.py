"""Agents and other objects by their place: `module:name`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pellucid import Agent
from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def load_agents(places: Iterable[str]) -> list[Agent[Any, Any]]:
    """Return the agents at these places; a name may also hold a list of agents.

    Raises:
        ConfigError: a place has another form, or there is no agent.
    """
    return [agent for place in places for agent in _agents(place)]


def load(place: str) -> Any:
    """Return the object at a place, `module:name`; None if the module has no such name.

    Raises:
        ConfigError: the place has another form, or there is no such module.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the current folder, as with `python -m`
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{place!r} is not a place; write module:name, such as support.agents:support")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module itself lacks something
        raise ConfigError(f"there is no module {module_name!r}; run where it can be imported") from error
    return getattr(module, name, None)


def agents_in(found: object) -> list[Agent[Any, Any]]:
    """Return the agents of an agent or a sequence of agents; none of anything else."""
    items: list[Any] = list(found) if isinstance(found, list | tuple) else [found]
    return items if all(isinstance(item, Agent) for item in items) else []


def _agents(place: str) -> list[Agent[Any, Any]]:
    found = load(place)
    agents = agents_in(found)
    if agents:
        return agents
    module_name, _, name = place.partition(":")
    if found is None:
        raise ConfigError(f"{place!r}: the module {module_name!r} has no {name!r}")
    raise ConfigError(f"{place!r} is of type {type(found).__name__}; name an agent, or a list of agents")
