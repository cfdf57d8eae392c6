"""The chain of links that a tool call passes through."""

from __future__ import annotations

from typing import Any, Final

import pytest

from bench.measure import first_run
from pellucid import Agent, Reliability, Tool, observe, static_tools
from pellucid.reliability import Rule, ok
from pellucid.run.calls.chain import LINKS, Kind, Need, chain_of
from pellucid.testing import ScriptedModel

ORDER: Final = (
    "in_turn bound journalled approved in_span begun guarded unattended refused elicited permitted activating "
    "paged background enqueued run_tool"
)
RULES: Final = Reliability([Rule(when=lambda s: False, then=ok(), kind="never")])


async def run(arguments: Any, ctx: Any) -> str:
    """Return a text."""
    return "ok"


def names(tool: Tool | None, *, is_durable: bool = False, is_one_of_several: bool = False, **options: Any) -> str:
    """Return the names of the links that a call passes through."""
    setup = Agent("a", model=ScriptedModel("x"), **options)._setup
    kind = Kind(is_durable, is_one_of_several, tool.call_kind if tool is not None else None)
    return " ".join(link.name for link in chain_of(Need(setup, kind)))


def test_the_order_of_the_links() -> None:
    """From the first that a call enters to the last; each says why it stands there."""
    assert " ".join(link.name for link in LINKS) == ORDER
    assert all(link.place for link in LINKS)


CHAINS: Final = [
    ({}, {}, "bound in_span refused run_tool"),
    ({}, {"is_one_of_several": True}, "in_turn bound in_span refused run_tool"),
    ({"serial": True}, {}, "in_turn bound in_span refused run_tool"),
    ({"needs_approval": True}, {}, "bound approved in_span refused run_tool"),
    ({}, {"is_durable": True}, "bound journalled in_span begun refused run_tool"),
    ({}, {"reliability": RULES}, "bound in_span guarded refused run_tool"),
    ({}, {"policy": lambda _request: "allow"}, "bound approved in_span refused permitted run_tool"),
    ({"execution": "same-invocation"}, {}, "bound in_span refused background"),
    ({"execution": "external-dispatch"}, {}, "bound in_span refused enqueued"),
]


@pytest.mark.parametrize(("tool", "options", "chain"), CHAINS, ids=[chain for *_, chain in CHAINS])
def test_a_call_passes_through_the_links_that_it_needs(tool: Any, options: Any, chain: str) -> None:
    """A call of a plain tool, through its span and its timeout only."""
    assert names(Tool(name="work", run=run, **tool), **options) == chain


@pytest.mark.parametrize("options", [{}, {"serial": True}, {"needs_approval": True}], ids=str)
def test_a_call_outside_of_a_run_passes_through_the_same_chain(options: dict[str, Any]) -> None:
    """With `unattended` in place of the links that end or pause a run."""
    tool = Tool(name="work", run=run, **options)
    setup = observe(static_tools([tool]), policy=lambda _request: "allow")._setup
    links = chain_of(Need(setup, Kind(is_durable=False, is_one_of_several=False, tool=tool.call_kind)))
    assert " ".join(link.name for link in links) == "bound in_span unattended refused run_tool"


def test_a_call_of_an_unknown_tool_is_observed_and_refused() -> None:
    """Rules and policies have no say about it."""
    assert names(None, reliability=RULES, policy=lambda _request: "allow") == "bound in_span refused run_tool"


def test_a_plain_agent_loads_no_link_that_it_does_not_need() -> None:
    """Their modules are loaded when the first call needs them."""
    loaded = {name.removeprefix("pellucid.run.calls.") for name in first_run()}
    assert "core" in loaded
    assert not loaded & {"approved", "begun", "enqueued", "guarded", "in_turn", "journalled", "permitted", "activating"}
