"""Versions of agents on the page of trends: the one before a new one, and a comparison of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.viewer.pages import query


def versions_before(groups: Iterable[RunGroup], agents: Sequence[str]) -> dict[str, str]:
    """Return by the name of a version that of the version of the same agent that began before it, if there is one.

    Agents with the longest names come first.
    """
    latest: dict[str, str] = {}
    before: dict[str, str] = {}
    for group in sorted(groups, key=lambda group: group.first):
        agent, _ = parts_of(group.name, agents)
        if not agent:  # its runs have no agent, or these are no versions
            continue
        if agent in latest:
            before[group.name] = latest[agent]
        latest[agent] = group.name
    return before


def parts_of(name: str, agents: Sequence[str]) -> tuple[str, str]:
    """Return the agent and the version in a name; agents with the longest names come first."""
    agent = next((agent for agent in agents if name.startswith(f"{agent} ")), "")
    return agent, name[len(agent) + 1 :]


def comparison_of(reader: Reader, one: tuple[str, str], other: tuple[str, str]) -> str | None:
    """Return the address that compares the newest runs of two versions, each with its agent."""
    found = [reader.search(RunFilter(agent=agent, version=version)).matches for agent, version in (one, other)]
    if not all(found):
        return None
    return f"/compare?{'&'.join(query(run=matches[0].run_id) for matches in found)}"


def first_of(periods: Iterable[Iterable[RunGroup]]) -> Mapping[str, RunGroup]:
    """Return the groups of several periods by name, each from the first period that has it."""
    found: dict[str, RunGroup] = {}
    for groups in periods:
        for group in groups:
            found.setdefault(group.name, group)
    return found
