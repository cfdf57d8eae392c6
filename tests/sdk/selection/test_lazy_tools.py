"""Lazy tools: `tool_search`, `__lazy__tool__discovery__`, and the tools that they activate."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, NoOpTracer, NoOpTracerProvider

from pellucid import (
    Agent,
    CapturePolicy,
    ConfigError,
    DiscoveryProvider,
    Limits,
    Mcp,
    Message,
    Tool,
    ToolCall,
    ToolRegistry,
    ToolResult,
    combined,
    gated_tools,
    semconv,
    static_tools,
    tool,
)
from pellucid.telemetry import TelemetryOptions
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import attributes, ending, within

if TYPE_CHECKING:
    from pellucid import ModelRequest, RunResult
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DISCOVERY = "__lazy__tool__discovery__"


def made(name: str, description: str = "", **options: Any) -> Tool:
    """Return a tool that answers with its name."""

    async def run(arguments: Any, ctx: object) -> str:
        return f"{name} ran"

    return Tool(name=name, description=description or f"Do {name}.", run=run, **options)


def offers(model: FunctionModel) -> list[list[str]]:
    """Return the names that each request offers."""
    return [[tool.name for tool in request.tools] for request in model.requests]


def results(result: RunResult[Any]) -> list[list[Any]]:
    """Return the results of the tool calls, message by message."""
    return [
        [part.response for part in message.parts if isinstance(part, ToolResult)]
        for message in result.messages
        if message.role == "tool"
    ]


def events(telemetry: Captured, name: str) -> list[Any]:
    """Return the events of one name."""
    return [event for event in telemetry.events if event.name == name]


def discover(*names: str, call_id: str | None = None) -> ToolCall:
    """Return a call that discovers tools by their names."""
    return ToolCall(DISCOVERY, {"toolNames": list(names)}, call_id)


def shop() -> ToolRegistry:
    """Return a registry in lazy mode."""
    registry = ToolRegistry(registry_mode="lazy")
    registry.register(made("create_invoice", "Create an invoice for a customer."))
    registry.register(made("list_invoices", "List all invoices."))
    registry.register(made("send_mail", "Send a message to an address.", tags=("email", "notify")))
    registry.register_mcp(made("create_issue", "Open an issue in a repository."), "github")
    return registry


# --- tool_search ------------------------------------------------------------------------------------------------------


async def test_a_tool_is_found_activated_and_called(telemetry: Captured) -> None:
    """Only `tool_search` is offered at first, and an activated tool from the next iteration on."""
    model = ScriptedModel(
        ToolCall("tool_search", {"query": "open issue"}),
        ToolCall("tool_search", {"name": "create_issue"}),
        ToolCall("create_issue"),
        "done",
    )
    result = await within(Agent("a", model=model, providers=[shop()]).run("x"))
    active = ["tool_search", "create_issue"]
    assert offers(model) == [["tool_search"], ["tool_search"], active, active]
    [[found], [activated], [ran]] = results(result)
    assert found["results"][0] == {"name": "create_issue", "description": "Open an issue in a repository."}
    assert all(set(each) == {"name", "description"} for each in found["results"])
    assert activated == {
        "activated": True,
        "name": "create_issue",
        "description": "Open an issue in a repository.",
        "parameters": {"type": "object", "properties": {}},
        "hint": "Tool `create_issue` is now available. Call it directly on your next turn.",
    }
    assert ran == "create_issue ran"
    [event] = events(telemetry, "tools.activated")
    assert (event.tool_name, event.provider_id, event.via) == ("create_issue", "registry", "tool_search")


async def test_a_search_is_a_span_with_query_hits_and_ranks(telemetry: Captured) -> None:
    """A search has the query, hits and ranks on its span and in its event."""
    model = ScriptedModel(ToolCall("tool_search", {"query": "invoices"}), "done")
    await within(Agent("a", model=model, providers=[shop()]).run("x"))
    found = attributes(telemetry.span("execute_tool tool_search"))
    assert found[semconv.SEARCH_QUERY] == "invoices"
    assert found[semconv.SEARCH_HITS] == 2
    assert set(found[semconv.SEARCH_RANKED]) == {"create_invoice", "list_invoices"}
    assert found[semconv.PROVIDER_ID] == "lazy"
    [event] = events(telemetry, "tools.searched")
    assert (event.query, event.hits, event.names) == ("invoices", 2, found[semconv.SEARCH_RANKED])


@pytest.mark.parametrize("mode", ["full", "redacted", "metadata", "off"])
async def test_a_query_is_content(mode: Any) -> None:
    """The query of a search is recorded as content: masked if redacted, absent in the other modes."""
    call = ToolCall("tool_search", {"query": "invoices Bearer abcdefghijklmnop1234567890"})
    with capture(capture=CapturePolicy(mode)) as telemetry:
        await within(Agent("a", model=ScriptedModel(call, "done"), providers=[shop()]).run("x"))
    said = attributes(telemetry.span("execute_tool")).get(semconv.SEARCH_QUERY)
    assert [event.query for event in events(telemetry, "tools.searched")] == [said]
    assert (said is not None) is (mode in ("full", "redacted"))
    assert ("abcdefghijklmnop" in (said or "")) is (mode == "full")


async def test_a_search_has_at_most_fifteen_results() -> None:
    """A search returns at most fifteen results and their total number."""
    registry = ToolRegistry([made(f"tool_{n}", "Fetch a page.") for n in range(40)], registry_mode="lazy")
    model = ScriptedModel(ToolCall("tool_search", {"query": "fetch pages"}), "done")
    [[found]] = results(await within(Agent("a", model=model, providers=[registry]).run("x")))
    names = [each["name"] for each in found["results"]]
    assert (len(names), found["total"]) == (15, 40)
    assert names == sorted(names)


async def test_several_tools_are_activated_by_one_call() -> None:
    """One call activates several tools, and suggests names and servers for an unknown one."""
    wanted = {"names": ["create_invoice", "creat_issue", "send_mail"]}
    model = ScriptedModel(ToolCall("tool_search", wanted), "done")
    [[said]] = results(await within(Agent("a", model=model, providers=[shop()]).run("x")))
    one, two, three = said["tools"]
    assert (one["activated"], two["activated"], three["activated"]) == (True, False, True)
    assert two["error"] == "unknown tool: creat_issue"
    assert two["suggestions"][0]["name"] == "create_issue"
    assert two["mcpServers"] == ["github"]
    assert offers(model)[1] == ["tool_search", "create_invoice", "send_mail"]


@pytest.mark.parametrize("arguments", [{}, {"query": "  "}])
async def test_a_search_for_nothing_is_refused(arguments: Any) -> None:
    """A search without a query or names is refused, and the model reads which to give."""
    model = ScriptedModel(ToolCall("tool_search", arguments), "done")
    [[said]] = results(await within(Agent("a", model=model, providers=[shop()]).run("x")))
    assert said == "Provide either `name` (to activate a tool) or `query` (to search)."


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"query": "mail", "name": "", "names": []}, None),
        ({"query": "", "name": "", "names": ["send_mail"]}, "send_mail"),
        ({"query": "mail", "name": None, "names": None}, None),
        ({"query": None, "name": "send_mail"}, "send_mail"),
        ({"names": "send_mail"}, "send_mail"),
    ],
)
async def test_what_is_left_empty_counts_as_not_given(arguments: Any, name: str | None) -> None:
    """An empty argument of a search counts as not given, and one name may take the place of a list."""
    model = ScriptedModel(ToolCall("tool_search", arguments), "done")
    [[said]] = results(await within(Agent("a", model=model, providers=[shop()]).run("x")))
    found = said["results"][0]["name"] if name is None else said.get("tools", [said])[0]["name"]
    assert found == "send_mail"
    assert (offers(model)[1] == ["tool_search", "send_mail"]) is (name is not None)


async def test_one_name_may_be_given_where_a_list_is_wanted() -> None:
    """The discovery tool accepts one name in the place of a list."""
    model = ScriptedModel(ToolCall(DISCOVERY, {"toolNames": "order"}), "done")
    [[said]] = results(await within(Agent("a", model=model, tools=pair()).run("x")))
    assert [each["name"] for each in said["tools"]] == ["order"]


async def test_a_search_without_hits_says_so() -> None:
    """A search without hits returns a hint to try other words."""
    model = ScriptedModel(ToolCall("tool_search", {"query": "zebra"}), "done")
    [[said]] = results(await within(Agent("a", model=model, providers=[shop()]).run("x")))
    assert said["results"] == []
    assert "Try other words" in said["hint"]


async def test_a_tool_that_is_not_lazy_needs_no_activation() -> None:
    """Activating a tool that is not lazy returns a hint to call it directly."""
    model = ScriptedModel(ToolCall("tool_search", {"name": "now"}), "done")
    agent = Agent("a", model=model, tools=[made("now")], providers=[shop()])
    [[said]] = results(await within(agent.run("x")))
    assert said["hint"] == "Tool `now` needs no activation. Call it directly."
    assert offers(model)[0] == ["now", "tool_search"]


async def test_all_tools_of_an_agent_may_be_lazy() -> None:
    """`registry_mode="lazy"` replaces the tools of all providers by `tool_search`."""
    hub = DiscoveryProvider(FakeHub([made("find")]), id="hub")
    model = ScriptedModel(ToolCall("tool_search", {"names": ["now", "find"]}), [ToolCall("now"), ToolCall("find")], "x")
    agent = Agent("a", model=model, tools=[made("now", lazy=True)], providers=[hub], registry_mode="lazy")
    result = await within(agent.run("x"))
    assert offers(model)[:2] == [["tool_search"], ["tool_search", "now", "find"]]
    assert results(result)[1] == ["now ran", "find ran"]


async def test_where_there_are_no_tools_there_is_none_to_find_them() -> None:
    """An empty catalogue in lazy mode offers no `tool_search`."""
    model = ScriptedModel("done")
    await within(Agent("a", model=model, providers=[static_tools([])], registry_mode="lazy").run("x"))
    assert offers(model) == [[]]


async def test_wrappers_hide_tools_from_search() -> None:
    """A tool that a gate withholds is neither found nor activated."""
    gate = gated_tools(shop(), lambda tool, ctx: "invoice" not in tool.name)
    model = ScriptedModel(
        [ToolCall("tool_search", {"query": "invoice"}), ToolCall("tool_search", {"name": "list_invoices"})], "done"
    )
    [[found, activated]] = results(await within(Agent("a", model=model, providers=[gate]).run("x")))
    assert found["results"] == []
    assert activated["activated"] is False


def test_a_mode_that_there_is_not_is_refused() -> None:
    """Agents and registries refuse an unknown `registry_mode`."""
    mode: Any = "eager"
    with pytest.raises(ConfigError, match="unknown registry_mode 'eager'; use 'full' or 'lazy'"):
        ToolRegistry(registry_mode=mode)
    with pytest.raises(ConfigError, match="unknown registry_mode 'eager'"):
        Agent("a", model=ScriptedModel(), registry_mode=mode)


# --- __lazy__tool__discovery__ ----------------------------------------------------------------------------------------


def pair() -> list[Tool]:
    """Return a tool that is offered at once, and two that are lazy."""
    return [made("now"), made("compare", lazy=True), made("order", lazy=True)]


async def test_lazy_tools_are_discovered_by_name(telemetry: Captured) -> None:
    """The discovery tool lists the names of lazy tools, returns their schemas, and is gone when all are discovered."""
    model = ScriptedModel(discover("compare"), discover("order"), [ToolCall("compare"), ToolCall("order")], "done")
    result = await within(Agent("a", model=model, tools=pair()).run("x"))
    assert offers(model) == [
        ["now", DISCOVERY],
        ["now", DISCOVERY, "compare"],
        ["now", "compare", "order"],
        ["now", "compare", "order"],
    ]
    [described] = [tool for tool in model.requests[0].tools if tool.name == DISCOVERY]
    assert described.description == (
        "You have access to additional tools that can be discovered. Available tools: [compare, order]. "
        "Call this tool with a list of tool names to discover their full descriptions and argument schemas "
        "before using them."
    )
    schema = {"type": "object", "properties": {}}
    assert results(result)[0] == [{"tools": [{"name": "compare", "description": "Do compare.", "inputSchema": schema}]}]
    assert results(result)[2] == ["compare ran", "order ran"]
    assert [(event.tool_name, event.via) for event in events(telemetry, "tools.activated")] == [
        ("compare", DISCOVERY),
        ("order", DISCOVERY),
    ]


async def test_functions_are_made_lazy_tools() -> None:
    """The decorator makes a lazy tool of a function with `lazy=True`."""

    @tool(lazy=True, tags=["a"])
    async def rare() -> str:
        """Do what is rarely needed."""
        return "rare ran"

    model = ScriptedModel([discover("rare"), ToolCall("rare")], "done")
    result = await within(Agent("a", model=model, tools=[rare]).run("x"))
    assert rare.tags == ("a",)
    assert results(result)[0][1] == "rare ran"


async def test_discovery_goes_on_when_nothing_is_left_to_discover(telemetry: Captured) -> None:
    """The discovery tool can be called when all tools are discovered, and activates nothing a second time."""
    model = ScriptedModel(discover("compare", "order", "compare"), discover("order"), "done")
    result = await within(Agent("a", model=model, tools=pair()).run("x"))
    first, second = results(result)
    assert [each["name"] for each in first[0]["tools"]] == ["compare", "order"]
    assert [each["name"] for each in second[0]["tools"]] == ["order"]
    assert len(events(telemetry, "tools.activated")) == 2


async def test_unknown_names_are_told_with_suggestions() -> None:
    """An unknown name in a discovery is an error with suggestions, and the known names are discovered."""
    model = ScriptedModel(discover("compare", "ordr", "now"), "done")
    [[said]] = results(await within(Agent("a", model=model, tools=pair()).run("x")))
    assert [each["name"] for each in said["tools"]] == ["compare"]
    assert said["errors"] == [
        "Unknown tool: 'ordr'. Available tools: [order]. Did you mean 'order'?",
        "Unknown tool: 'now'. Available tools: [order].",
    ]


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (
            {"tools": pair()},
            f"Error: Tool 'order' must be discovered first. Call {DISCOVERY} with toolNames: ['order'] to discover it.",
        ),
        (
            {"tools": pair(), "registry_mode": "lazy"},
            "Error: Tool 'order' must be activated first. Call tool_search with name: 'order' to activate it.",
        ),
    ],
)
async def test_a_tool_that_is_not_active_is_not_run(telemetry: Captured, agent: Any, text: str) -> None:
    """A call to an inactive tool is not run, and the model reads how to activate the tool."""
    model = ScriptedModel(ToolCall("order"), "done")
    result = await within(Agent("a", model=model, **agent).run("x"))
    assert results(result) == [[text]]
    assert ending(telemetry.span("execute_tool order")) == ("failed", "ERROR", "tool_not_active")


async def test_discovery_and_call_may_come_in_one_message() -> None:
    """One message may discover and call a tool in any order, and the results are in the order of the calls."""
    calls = [ToolCall("order", id="1"), discover("order", call_id="2"), ToolCall("compare", id="3")]
    result = await within(Agent("a", model=ScriptedModel(calls, "done"), tools=pair()).run("x"))
    ran, discovered, refused = results(result)[0]
    assert ran == "order ran"
    assert [each["name"] for each in discovered["tools"]] == ["order"]
    assert "must be discovered first" in refused


async def test_call_ids_that_are_repeated_have_one_result_each() -> None:
    """A repeated call id has one result, also if one of the calls discovers tools."""
    calls = [discover("order", call_id="1"), ToolCall("order", id="1"), ToolCall("order", id="2")]
    result = await within(Agent("a", model=ScriptedModel(calls, "done"), tools=pair()).run("x"))
    one, two = results(result)[0]
    assert "you used the call id '1' for several calls" in one
    assert two == "order ran"


async def test_both_ways_live_side_by_side() -> None:
    """Searched and named lazy tools each have their own discovery tool in one agent."""
    model = ScriptedModel([ToolCall("tool_search", {"name": "send_mail"}), discover("order", "send_mail")], "done")
    agent = Agent("a", model=model, tools=pair(), providers=[shop()])
    [[found, discovered]] = results(await within(agent.run("x")))
    assert found["activated"]
    assert discovered["errors"] == ["Unknown tool: 'send_mail'. Available tools: [compare]."]
    assert offers(model)[1] == ["now", "tool_search", DISCOVERY, "send_mail", "order"]


async def test_without_lazy_tools_nothing_changes() -> None:
    """An agent without lazy tools offers no discovery tool."""
    model = ScriptedModel("done")
    await within(Agent("a", model=model, tools=[made("now")]).run("x"))
    assert offers(model) == [["now"]]


# --- turns ------------------------------------------------------------------------------------------------------------


async def test_activation_survives_turns(telemetry: Captured) -> None:
    """Tools that a history activated are active in the next run, also if its results are JSON text."""
    model = ScriptedModel(
        [discover("order", call_id="1"), ToolCall("tool_search", {"names": ["send_mail"]}, "2")],
        ToolCall("tool_search", {"name": "create_issue"}, "3"),
        "done",
    )
    first = await within(Agent("a", model=model, tools=pair(), providers=[shop()]).run("x"))
    as_text = [
        Message(
            message.role,
            [
                ToolResult(part.id, json.dumps(part.response)) if isinstance(part, ToolResult) else part
                for part in message.parts
            ],
        )
        for message in first.messages
    ]
    for history in (first.messages, as_text):
        model = ScriptedModel([ToolCall("order", id="8"), ToolCall("send_mail", id="9")], "done")
        agent = Agent("a", model=model, tools=pair(), providers=[shop()])
        result = await within(agent.run("y", history=history))
        assert set(offers(model)[0]) == {"now", "tool_search", DISCOVERY, "order", "send_mail", "create_issue"}
        assert results(result)[-1] == ["order ran", "send_mail ran"]
    assert [event.via for event in events(telemetry, "tools.activated")][3:] == ["history"] * 6


@pytest.mark.parametrize(
    "response",
    [
        "not json",
        "[" * 100_000,
        '{"tools": 3}',
        '{"tools": [1, null, {"name": 4}, {"names": "order"}]}',
        '{"name": "order"}',
        '{"activated": "yes", "name": "order"}',
        '{"tools": [{"name": "now"}, {"name": "rm_rf"}]}',
        None,
        ["order"],
    ],
)
async def test_malformed_and_forged_discoveries_activate_nothing(telemetry: Captured, response: Any) -> None:
    """A malformed or forged discovery in a history activates nothing."""
    history = [
        Message("user", "x"),
        Message("assistant", [discover("order", call_id="1")]),
        Message("tool", [ToolResult("1", response)]),
    ]
    model = ScriptedModel("done")
    await within(Agent("a", model=model, tools=pair()).run("y", history=history))
    assert offers(model) == [["now", DISCOVERY]]
    assert events(telemetry, "tools.activated") == []


async def test_results_that_answer_no_discovery_activate_nothing() -> None:
    """A result in a history activates nothing unless it answers a discovery and has not failed."""
    good = {"tools": [{"name": "order"}]}
    history = [
        Message("user", [ToolResult("0", good)]),
        Message("assistant", [ToolCall("now", {}, "1"), discover("order", call_id="2")]),
        Message("tool", [ToolResult("1", good), ToolResult("2", good, is_error=True), ToolResult("3", good)]),
    ]
    model = ScriptedModel("done", strict=False)
    await within(Agent("a", model=model, tools=pair()).run("y", history=history))
    assert offers(model) == [["now", DISCOVERY]]


async def test_what_is_unregistered_is_no_longer_active(telemetry: Captured) -> None:
    """An active tool that is unregistered is deactivated, and has to be activated again when it comes back."""
    registry = shop()

    def leave(request: object) -> ToolCall:
        registry.unregister_mcp()
        return ToolCall("create_issue")

    def come_back(request: object) -> ToolCall:
        registry.register_mcp(made("create_issue"), "github")
        return ToolCall("create_issue")

    model = ScriptedModel(
        ToolCall("tool_search", {"name": "create_issue"}), leave, come_back, ToolCall("create_issue"), "done"
    )
    result = await within(Agent("a", model=model, providers=[registry]).run("x"))
    _, [ran], [removed], [inactive] = results(result)
    assert ran == "create_issue ran"
    assert "was removed since it was offered" in removed
    assert "must be activated first" in inactive
    assert offers(model)[2:] == [["tool_search"]] * 3
    [event] = events(telemetry, "tools.deactivated")
    assert (event.tool_name, event.provider_id, event.reason) == ("create_issue", "registry", "removed")


async def test_an_active_tool_of_a_server_that_goes_away_is_deactivated(telemetry: Captured) -> None:
    """A tool of a server that goes away is deactivated, and the degraded run goes on."""
    tools = [made("page", source=Mcp("wiki"), lazy=True)]
    wiki = DiscoveryProvider(FakeHub(tools, faults=[None, None, OSError("gone")]), id="wiki", ttl=0)
    model = ScriptedModel(discover("page"), ToolCall("page"), ToolCall("page"), "done")
    hubs = combined(wiki, static_tools([made("now")]), on_error="skip")
    result = await within(Agent("a", model=model, providers=[hubs]).run("x"))
    assert results(result)[1] == ["page ran"]
    assert "was removed since it was offered" in results(result)[2][0]
    assert [event.tool_name for event in events(telemetry, "tools.deactivated")] == ["page"]
    assert set(result.degraded) == {"wiki"}


async def test_a_tool_that_is_lazy_no_longer_is_offered_as_any_other(telemetry: Captured) -> None:
    """An active tool that is no longer lazy is deactivated, still offered, and can be called."""

    class Changing:
        id = "changing"
        tools = (made("order", lazy=True),)

        def list_tools(self, ctx: object) -> Any:
            return self.tools

    provider = Changing()

    def change(request: object) -> ToolCall:
        provider.tools = (made("order"),)
        return ToolCall("order")

    model = ScriptedModel(discover("order"), change, ToolCall("order"), "done")
    result = await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert results(result)[1:] == [["order ran"], ["order ran"]]
    assert offers(model)[2:] == [["order"], ["order"]]
    assert [event.reason for event in events(telemetry, "tools.deactivated")] == ["not_lazy"]


async def test_runs_at_the_same_time_have_their_own_active_tools() -> None:
    """Concurrent runs and streams of one agent have their own active tools."""
    names = ["create_invoice", "list_invoices", "send_mail", "create_issue"]

    def answer(request: ModelRequest) -> Any:
        mine = request.messages[0].text
        if len(request.messages) == 1:
            return ToolCall("tool_search", {"name": mine})
        assert [tool.name for tool in request.tools] == ["tool_search", mine]
        return ToolCall(mine) if len(request.messages) == 3 else mine

    agent = Agent("a", model=FunctionModel(answer), providers=[shop()])
    found: list[str] = []

    async def one(name: str, *, streamed: bool) -> None:
        if not streamed:
            found.append((await agent.run(name)).output)
            return
        async with agent.stream(name) as seen:
            async for _ in seen:
                pass
        found.append(seen.result.output)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(partial(one, names[number % 4], streamed=number % 3 == 0))
    assert sorted(found) == sorted(names * 5)


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_iterations_that_only_discover_do_not_count(telemetry: Captured) -> None:
    """Iterations that only discover tools do not count against `max_iterations`."""
    searches = [ToolCall("tool_search", {"query": "invoice"})] * 4
    activate = ToolCall("tool_search", {"name": "create_invoice"})
    model = ScriptedModel(*searches, activate, ToolCall("create_invoice"), "done")
    limits = Limits(max_iterations=2, max_discoveries=5)
    result = await within(Agent("a", model=model, providers=[shop()], limits=limits).run("x"))
    assert (result.status, result.iterations, result.output) == ("completed", 7, "done")


async def test_searching_for_ever_comes_to_an_end(telemetry: Captured) -> None:
    """A search beyond `max_discoveries` fails, and its iteration counts against `max_iterations`."""

    def search(request: Any) -> Any:
        return ToolCall("tool_search", {"query": "invoice"}) if request.tools else "gave up"

    limits = Limits(max_iterations=3, max_discoveries=4)
    result = await within(Agent("a", model=FunctionModel(search), providers=[shop()], limits=limits).run("x"))
    assert (result.status, result.stop_reason, result.iterations) == ("limit_reached", "max_iterations", 7)
    ends = [ending(span) for span in telemetry.find("execute_tool tool_search")]
    assert ends == [("completed", "UNSET", None)] * 4 + [("failed", "ERROR", "max_discoveries")] * 3
    assert "that only discover tools is reached. Call one of the tools" in results(result)[-1][0]
    assert len(events(telemetry, "tool.failed")) == 3


@pytest.mark.parametrize(("iterations", "discoveries"), [(3, 6), (10, 20)])
async def test_discovery_has_twice_the_iterations_by_default(
    telemetry: Captured, iterations: int, discoveries: int
) -> None:
    """`max_discoveries` is twice `max_iterations` by default."""

    def search(request: Any) -> Any:
        return ToolCall("tool_search", {"query": "invoice"}) if request.tools else "gave up"

    agent = Agent("a", model=FunctionModel(search), providers=[shop()], limits=Limits(max_iterations=iterations))
    result = await within(agent.run("x"))
    assert (result.status, result.iterations) == ("limit_reached", 3 * iterations)
    ends = [ending(span)[0] for span in telemetry.find("execute_tool tool_search")]
    assert ends == ["completed"] * discoveries + ["failed"] * iterations


@pytest.mark.parametrize("via", ["tool_search", "__lazy__tool__discovery__"])
async def test_the_end_of_discovery_has_one_way_out(via: str) -> None:
    """Beyond the limit, a search and a call to an inactive tool get answers that do not lead to each other."""
    search = ToolCall("tool_search", {"query": "invoice"}) if via == "tool_search" else discover("orders")
    name = "create_invoice" if via == "tool_search" else "order"
    model = ScriptedModel(search, search, [replace(search, id="1"), ToolCall(name, {}, "2")], "done")
    sources: dict[str, Any] = {"providers": [shop()]} if via == "tool_search" else {"tools": pair()}
    agent = Agent("a", model=model, limits=Limits(max_discoveries=2), **sources)
    searched, called = results(await within(agent.run("x")))[-1]
    limit = "the limit of 2 iterations that only discover tools is reached."
    way_out = f"{limit} Call one of the tools that you have, or answer."
    assert searched == f"Not run: {way_out}"
    assert called == f"Error: Tool '{name}' is not active, and {way_out}"


async def test_discovery_may_be_forbidden() -> None:
    """`max_discoveries=0` refuses every discovery."""
    model = ScriptedModel(discover("order"), "done")
    agent = Agent("a", model=model, tools=pair(), limits=Limits(max_discoveries=0))
    assert "Not run" in results(await within(agent.run("x")))[0][0]


# --- cost -------------------------------------------------------------------------------------------------------------


async def test_many_unknown_names_do_not_hold_up_the_event_loop() -> None:
    """Each of many unknown names gets an error, and close names are not looked for in a large catalogue."""
    for count, suggested in ((50, 5), (1000, 0)):
        tools = [made(f"tool_number_{number}", lazy=True) for number in range(count)]
        unknown = [f"tool_nmber_{number}" for number in range(60)]
        model = ScriptedModel(discover(*unknown), "done")
        [[said]] = results(await within(Agent("a", model=model, tools=tools).run("x")))
        assert len(said["errors"]) == 60
        assert sum("tool_number_49" in error for error in said["errors"]) == 5
        assert sum("Did you mean" in error for error in said["errors"]) == suggested


async def test_a_span_that_fails_does_not_fail_a_search() -> None:
    """A search succeeds even if its span fails."""

    class Broken(NonRecordingSpan):
        def set_attributes(self, attributes: Any) -> None:
            raise RuntimeError("no attributes today")

    class Tracers(NoOpTracerProvider, NoOpTracer):
        def get_tracer(self, *args: Any, **options: Any) -> Any:
            return self

        def start_span(self, *args: Any, **options: Any) -> Any:
            return Broken(INVALID_SPAN_CONTEXT)

    model = ScriptedModel(ToolCall("tool_search", {"query": "mail"}), "done")
    agent = Agent("a", model=model, providers=[shop()], telemetry=TelemetryOptions(tracer_provider=Tracers()))
    [[found]] = results(await within(agent.run("x")))
    assert [each["name"] for each in found["results"]] == ["send_mail"]


async def test_an_offer_that_does_not_change_has_one_digest(telemetry: Captured) -> None:
    """Iterations with the same active tools have the same digest, in the order of activation."""
    model = ScriptedModel(discover("order"), discover("compare"), ToolCall("now"), ToolCall("now"), "done")
    await within(Agent("a", model=model, tools=pair()).run("x"))
    digests = [attributes(span)[semconv.CATALOG_DIGEST] for span in telemetry.find("compose_request")]
    assert len(set(digests)) == 3
    assert len(set(digests[2:])) == 1
    assert offers(model)[-1] == ["now", "order", "compare"]
    assert model.requests[3].tools is model.requests[4].tools
