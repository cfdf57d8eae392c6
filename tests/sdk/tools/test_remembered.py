"""Remembered catalogues, and how long they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import DiscoveryContext, Tool, ToolProvider, combined, gated_tools, static_tools
from pellucid.providers import Lister
from pellucid.telemetry import Scope, enter_scope, leave_scope
from pellucid.tools.catalog_cache import MOST, Remembered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def made(count: int) -> list[Tool]:
    """Return tools that do nothing."""
    return [Tool(name=f"tool_{number}", run=lambda arguments, ctx: "") for number in range(count)]


class Copying:
    """A provider that lists the same tools in another sequence each time."""

    id = "copying"

    def __init__(self, kind: Callable[[list[Tool]], Any]) -> None:
        self._tools = made(3)
        self._kind = kind

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Return a copy of the tools."""
        return self._kind(self._tools)


@pytest.mark.parametrize(
    "provider",
    [
        Copying(list),
        Copying(tuple),
        gated_tools(static_tools(made(3)), lambda tool, ctx: True),
        combined(static_tools(made(3))),
    ],
)
async def test_the_same_tools_are_one_catalogue(telemetry: Captured, provider: ToolProvider) -> None:
    """The same tools are one catalogue, also in a new sequence."""
    lister, scope = Lister(provider), Scope(run_id="r1", pipeline=telemetry)
    token = enter_scope(scope)
    try:
        first, second = [await lister.list(scope, DiscoveryContext(), None) for _ in range(2)]
    finally:
        leave_scope(token)
    assert first is second


def test_as_many_tools_are_remembered_as_memory_is_given_for() -> None:
    """The catalogue that was not used for the longest time is forgotten first, and the newest one is always kept."""
    remembered: Remembered[str] = Remembered(most_tools=10)
    for key in "abc":
        remembered.put(key, key, 3)
    assert remembered.get("a") == "a"
    remembered.put("d", "d", 4)
    assert [remembered.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    remembered.put("d", "again", 1)
    remembered.put("e", "e", 3)
    assert [remembered.get(key) for key in "acde"] == ["a", "c", "again", "e"]
    remembered.put("big", "big", 1000)
    assert (len(remembered), remembered.get("big")) == (1, "big")


def test_as_many_catalogues_are_remembered_as_there_is_a_use_for() -> None:
    """At most `MOST` catalogues are remembered, however small they are."""
    remembered: Remembered[int] = Remembered()
    for number in range(3 * MOST):
        remembered.put(number, number, 0)
    assert len(remembered) == MOST
    assert remembered.get(2 * MOST) == 2 * MOST
