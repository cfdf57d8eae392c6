from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import (
    Agent,
    Builtin,
    ConfigError,
    DiscoveryContext,
    DiscoveryProvider,
    Hub,
    Mcp,
    Tool,
    ToolCall,
    ToolProvider,
    ToolRegistry,
    semconv,
)
from pellucid.errors import ToolNameCollision
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools.names import fitted_names, problem_of
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def made(name: str, **options: Any) -> Tool:
    """Return a tool that does nothing."""

    async def run(arguments: Any, ctx: object) -> str:
        return name

    return Tool(name=name, description=f"Do {name}.", run=run, **options)


def full() -> ToolRegistry:
    """Return a registry with tools of all sources."""
    registry = ToolRegistry([made("now")])
    registry.register_mcp(made("search"), "github")
    registry.register_mcp(made("page"), "wiki")
    registry.register(made("mail", source=Hub("rube")))
    return registry


def test_schemas_say_where_tools_come_from() -> None:
    """Schemas are sorted by name, each with name, description, parameters and source."""
    [mail, now, page, search] = full().list_schemas()
    parameters = {"type": "object", "properties": {}}
    assert now == {"name": "now", "description": "Do now.", "parameters": parameters, "source": "builtin"}
    assert (mail["source"], mail["providerId"]) == ("hub", "rube")
    assert (page["source"], page["mcpServer"]) == ("mcp", "wiki")
    assert (search["source"], search["mcpServer"]) == ("mcp", "github")


def test_schemas_are_copies() -> None:
    """A change of a returned schema does not change the registry."""
    registry: Any = full()
    registry.list_schemas()[0]["parameters"]["type"] = "string"
    assert registry.list_schemas()[0]["parameters"]["type"] == "object"


def test_tools_come_and_go() -> None:
    """Tools are removed one by one, by server or all of MCP, and the number removed is returned."""
    registry = full()
    assert registry.names() == ["mail", "now", "page", "search"]
    assert registry.unregister("mail")
    assert not registry.unregister("mail")
    assert registry.unregister_mcp("wiki") == 1
    assert registry.unregister_mcp() == 1
    assert registry.unregister_mcp() == 0
    assert registry.names() == ["now"]


def test_functions_are_registered_as_tools() -> None:
    """`register` decorates a function and makes it a tool."""
    registry = ToolRegistry()

    @registry.register
    def forecast(city: str) -> str:
        """Return the forecast."""
        return city

    assert forecast.source == Builtin()
    assert registry.names() == ["forecast"]


def test_clones_go_their_own_way() -> None:
    """A clone has the allowed tools, and later changes of either do not show in the other."""
    registry = full()
    assert registry.clone_without_mcp().names() == ["mail", "now"]
    clone = registry.clone_allowed_by(lambda tool: tool.source == Mcp("wiki"))
    registry.unregister_mcp()
    clone.register(made("other"))
    assert clone.names() == ["other", "page"]
    assert registry.names() == ["mail", "now"]
    with pytest.raises(ZeroDivisionError):
        registry.clone_allowed_by(lambda tool: bool(1 / 0))


def test_one_source_is_replaced_at_one_moment() -> None:
    """`replace_source` replaces the tools of one source, or changes nothing if a name collides."""
    registry = full()
    registry.replace_source(Mcp("wiki"), [made("page"), made("edit")])
    assert registry.names() == ["edit", "mail", "now", "page", "search"]
    with pytest.raises(ToolNameCollision, match="'now' is offered by both 'builtin' and 'mcp:wiki'"):
        registry.replace_source(Mcp("wiki"), [made("fresh"), made("now")])
    assert registry.names() == ["edit", "mail", "now", "page", "search"]


def test_readers_never_see_half_a_source() -> None:
    """A list never mixes two generations of a source that another thread replaces."""
    registry = ToolRegistry()
    generations = [[made(f"{name}{number}") for number in range(20)] for name in "ab"]
    registry.replace_source(Mcp("s"), generations[0])
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for generation in generations:
                registry.replace_source(Mcp("s"), generation)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        seen = [{name[0] for name in registry.names()} for _ in range(300)]
        seen += [{tool.name[0] for tool in registry.list_tools(DiscoveryContext())} for _ in range(300)]
    finally:
        stop.set()
        swapping.join(60)
    assert all(len(names) == 1 for names in seen)


def test_many_threads_may_register_at_the_same_time() -> None:
    """Tools that many threads register at the same time are all there."""
    registry = ToolRegistry()

    def register(number: int) -> None:
        for index in range(25):
            registry.register(made(f"t{number}_{index}"))

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(registry.names()) == 200


@pytest.mark.parametrize(
    ("policy", "listed"),
    [("first", ["find"]), ("last", ["find"]), ("prefix", ["find", "wiki__find"])],
)
async def test_collisions_inside_are_told_to_each_run(telemetry: Captured, policy: Any, listed: list[str]) -> None:
    """A collision within a registry is one event with both sources in each run."""
    registry = ToolRegistry([made("find")], collisions=policy)
    registry.register_mcp(made("find"), "wiki")
    assert registry.names() == listed
    for _ in range(2):
        model = ScriptedModel(ToolCall("find"), "done")
        await within(Agent("a", model=model, providers=[registry]).run("x"))
    told: list[Any] = [event for event in telemetry.events if event.name == "tools.shadowed"]
    sources = {"builtin", "mcp:wiki"}
    assert [{event.source, event.shadowed_source} for event in told] == [sources, sources]
    assert {(event.tool_name, event.provider_id) for event in told} == {("find", "registry")}
    assert [event.source == "mcp:wiki" for event in told] == [policy == "last"] * 2


def test_a_collision_is_refused_when_it_is_made() -> None:
    """A collision is refused at once by default, and the registry stays unchanged."""
    registry = full()
    with pytest.raises(ToolNameCollision, match=r"registering a tool in 'registry' failed: .*'search'.*'mcp:github'"):
        registry.register(made("search"))
    prefixed = ToolRegistry([made("find")], collisions="prefix")
    with pytest.raises(ToolNameCollision, match="'builtin' and 'builtin'"):
        prefixed.register(made("find"))
    assert registry.names() == ["mail", "now", "page", "search"]


def test_what_is_unregistered_is_what_is_listed_under_the_name() -> None:
    """`unregister` removes the listed tool and those it hides; a tool with a name of its own stays."""
    for policy, left in (("first", []), ("prefix", ["find"])):
        choice: Any = policy
        registry = ToolRegistry([made("find")], collisions=choice)
        registry.register_mcp(made("find"), "wiki")
        assert registry.unregister("find")
        assert registry.names() == left
    registry = ToolRegistry([made("find")], collisions="prefix")
    registry.register_mcp(made("find"), "wiki")
    assert registry.unregister("wiki__find")
    assert [schema["source"] for schema in registry.list_schemas()] == ["builtin"]


async def test_spans_logs_and_metrics_say_where_a_tool_comes_from(telemetry: Captured) -> None:
    """Span, log line and metric have the kind of a tool's source, and the span also the server."""
    model = ScriptedModel([ToolCall(name, id=name) for name in ("search", "mail", "now")], "done")
    await within(Agent("a", model=model, providers=[full()]).run("x"))
    expected = {"search": ("mcp", "github"), "mail": ("hub", "rube"), "now": ("builtin", None)}
    for name, (source, place) in expected.items():
        found = attributes(telemetry.span(f"execute_tool {name}"))
        assert (found[semconv.TOOL_SOURCE], found.get(semconv.TOOL_SOURCE_PLACE)) == (source, place)
        assert found[semconv.PROVIDER_ID] == "registry"
    lines = {line["tool_name"]: line["source"] for line in telemetry.logs if "tool_name" in line}
    assert lines == {"search": "mcp", "mail": "hub", "now": "builtin"}
    points = [point for point in telemetry.metrics if point.name == semconv.TOOL_DURATION.name]
    assert {point.attributes[semconv.TOOL_SOURCE] for point in points} == {"mcp", "hub", "builtin"}
    assert {attributes(span)[semconv.PROVIDER_KIND] for span in telemetry.find("discover_tools")} == {"registry"}


async def test_tools_of_a_hub_come_from_it(telemetry: Captured) -> None:
    """A tool that a `DiscoveryProvider` lists has that provider as its source."""
    hub = DiscoveryProvider(FakeHub([made("mail")]), id="rube")
    await within(Agent("a", model=ScriptedModel(ToolCall("mail"), "done"), providers=[hub]).run("x"))
    found = attributes(telemetry.span("execute_tool mail"))
    assert (found[semconv.TOOL_SOURCE], found[semconv.TOOL_SOURCE_PLACE]) == ("hub", "rube")


async def test_a_run_sees_a_change_at_its_next_iteration(telemetry: Captured) -> None:
    """A tool that was unregistered during a run is removed in the next iteration."""
    registry = full()

    def remove(request: object) -> ToolCall:
        registry.unregister_mcp()
        return ToolCall("page")

    model = ScriptedModel(remove, ToolCall("search"), "done")
    result = await within(Agent("a", model=model, providers=[registry]).run("x"))
    assert result.messages[2].parts[0].to_dict()["response"] == "page"
    assert "Tool 'search' was removed since it was offered" in str(result.messages[4].parts[0].to_dict()["response"])
    assert [event.name for event in telemetry.events if event.name.startswith("tools.cat")] == ["tools.catalog_changed"]


async def test_equal_content_has_an_equal_digest(telemetry: Captured) -> None:
    """The digest of a registry does not depend on the order of registration."""
    for order in (("a", "b", "c"), ("c", "a", "b")):
        registry = ToolRegistry([made(name) for name in order])
        await within(Agent("a", model=ScriptedModel("done"), providers=[registry]).run("x"))
    digests = {attributes(span)[semconv.CATALOG_DIGEST] for span in telemetry.find("discover_tools")}
    assert len(digests) == 1


def test_a_list_is_the_same_as_long_as_nothing_changes() -> None:
    """A registry is a provider, and returns the same list while nothing changes."""
    registry = full()
    assert isinstance(registry, ToolProvider)
    assert registry.list_tools(DiscoveryContext()) is registry.list_tools(DiscoveryContext(iteration=2))


def test_names_are_made_to_fit() -> None:
    """A name that models do not accept is made to fit, and a reserved one is refused."""
    registry = ToolRegistry([made("files.read/all"), made("ok")])
    assert registry.names() == ["files_read_all_" + registry.names()[0][-10:], "ok"]
    with pytest.raises(ConfigError, match="'load_skill' is reserved for the tool that loads skills"):
        registry.register(made("load_skill"))
    with pytest.raises(ConfigError, match="id must not be empty"):
        ToolRegistry(id="")


def test_a_tool_is_unregistered_by_the_name_it_was_registered_by() -> None:
    """A tool can be unregistered by its original name and by its fitted one."""
    registry = ToolRegistry([made("files.read/all"), made("files.write")])
    assert registry.unregister("files.read/all")
    assert registry.unregister(registry.names()[0])
    assert registry.names() == []


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    """A tool name that is no text is refused when it is registered."""
    with pytest.raises(ConfigError, match=r"ToolRegistry 'registry': tool name .* is not 1 to 64 characters"):
        ToolRegistry([made(name)])


@given(st.lists(st.text(max_size=90), max_size=12))
def test_fitted_names_can_be_read_backwards(names: list[str]) -> None:
    """Each fitted name is valid, unique and independent of the order of the names."""
    fitted = fitted_names(names)
    assert set(fitted) == set(names)
    assert all(problem_of(name) is None for name in fitted.values())
    assert len(set(fitted.values())) == len(fitted)
    assert fitted == fitted_names(reversed(names))
    assert all(fitted[name] == name for name in names if problem_of(name) is None)
