"""Tools from a configuration: which it enables, and the errors of a wrong one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ConfigDict, SecretStr

from pellucid import (
    Agent,
    ConfigError,
    ExternalResult,
    ModelRequest,
    ProviderTool,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    configured_tools,
    tool,
)
from pellucid.configured import FACTORIES, Factory, ToolOptions
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "hunter2-is-a-secret"


class WeatherOptions(ToolOptions):
    """Options of a tool of a team."""

    token: SecretStr | None = None
    max_days: int = 7
    units: str = "metric"


def weather(options: WeatherOptions) -> Tool:
    """Return a tool with options."""

    @tool
    def forecast(city: str) -> str:
        """Return the forecast."""
        return f"{city}: rain, {options.max_days} days, {options.units}"

    return forecast


def clock() -> Tool:
    """Return a tool without options."""

    @tool
    def now() -> str:
        """Return the time."""
        return "noon"

    return now


def serial() -> Tool:
    """Return a tool that cannot run in the background."""
    return Tool(name="x", run=lambda arguments, ctx: None, serial=True)


def nested() -> Tool:
    """Return a tool that runs an agent."""
    return Agent("inner", model=ScriptedModel("x"), description="Thinks.").as_tool()


def remote() -> Tool:
    """Return a tool of an MCP server."""
    return Tool(name="x", run=lambda arguments, ctx: None, mode="mcp")


def beating() -> Tool:
    """Return a tool that shows that it is alive."""
    return Tool(name="x", run=lambda arguments, ctx: None, execution="same-invocation", heartbeat=5.0)


def booking() -> Tool:
    """Return a tool that books a room itself, or hands the booking to another process."""

    @tool
    async def book(room: str, ctx: ToolContext) -> str | None:
        """Book a room."""
        if ctx.external is None:
            return f"{room} is booked"
        queued.append((ctx.external.result_id, room))
        return None

    return book


queued: list[tuple[str, str]] = []
"""Bookings that were handed to another process, by the id of the result."""

OWN: Mapping[str, Factory] = {
    **FACTORIES,
    **{made.__name__: made for made in (weather, clock, serial, nested, remote, beating, booking)},
}


def problems(config: Any, **factories: Any) -> list[str]:
    """Return the lines with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        configured_tools(config, factories={**OWN, **factories})
    title, *lines = str(caught.value).splitlines()
    assert title == "configured tools cannot be created:"
    return lines


def results(request: ModelRequest) -> list[Any]:
    """Return the results that the model reads."""
    return [part.response for message in request.messages for part in message.parts if isinstance(part, ToolResult)]


@pytest.mark.anyio
async def test_tools_are_listed_under_the_names_and_in_the_order_of_the_configuration(telemetry: Captured) -> None:
    """The provider `external` lists the tools of the table in its order, without those with `enabled = false`."""
    provider = configured_tools(
        {"weather": {"maxDays": 2}, "clock": {"enabled": True}, "test_async": {"enabled": False}}, factories=OWN
    )
    model = ScriptedModel(ToolCall("weather", {"city": "Bergen"}), "done")
    await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert [definition.name for definition in model.requests[0].tools] == ["weather", "clock"]
    assert results(model.requests[1]) == ["Bergen: rain, 2 days, metric"]
    assert telemetry.find("discover_tools external")


def test_a_table_of_a_toml_file_is_a_configuration() -> None:
    """A whole TOML file is a configuration, whatever other tables it has."""
    text = """
        [application]
        name = "support"

        [tools.weather]
        units = "imperial"
        needsApproval = true

        [tools.test_async]
        async = true
        delay = 0
    """
    forecast, echo = configured_tools(tomllib.loads(text), factories=OWN).tools
    assert (forecast.name, forecast.needs_approval, forecast.execution) == ("weather", True, None)
    assert (echo.name, echo.execution) == ("test_async", "same-invocation")


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["full", "lazy"])
async def test_the_table_of_tools_may_have_a_registry_mode(mode: str) -> None:
    """With `registry_mode = "lazy"`, the model finds the tools of the table with `tool_search`."""
    text = f"[tools]\nregistry_mode = '{mode}'\n[tools.clock]\n[tools.weather]\nmaxDays = 3"
    provider = configured_tools(tomllib.loads(text), factories=OWN)
    assert provider.registry_mode == mode
    activate = [ToolCall("tool_search", {"name": "weather"})] if mode == "lazy" else []
    model = ScriptedModel(*activate, ToolCall("weather", {"city": "Bergen"}), "done")
    result = await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert results(ModelRequest(messages=result.messages))[-1] == "Bergen: rain, 3 days, metric"
    offers = [[tool.name for tool in request.tools] for request in model.requests]
    assert offers[0] == (["tool_search"] if mode == "lazy" else ["clock", "weather"])
    assert offers[-1] == (["tool_search", "weather"] if mode == "lazy" else ["clock", "weather"])


@pytest.mark.parametrize("value", ["Lazy", 5, None, {}, ["lazy"]])
def test_an_unknown_registry_mode_is_refused_by_its_path(value: Any) -> None:
    """The error of a wrong `registry_mode` has its path, and suggests the right spelling of the option."""
    assert problems({"registry_mode": value, "weather": {"maxDays": "3"}}) == [
        "config.tools.registry_mode: input should be 'full' or 'lazy'",
        "config.tools.weather.maxDays: input should be a valid integer",
    ]
    [misspelled] = problems({"registryMode": "lazy"})
    assert misspelled == "config.tools.registryMode is not a supported tool; did you mean 'registry_mode'?"


def test_all_problems_are_reported_at_once_each_with_its_path() -> None:
    """One error lists all problems with their paths and the nearest right names, also those of disabled tools."""
    config = {
        "tavilysearch": {},
        "webSearch": {},
        "weather": {"max_days": 2, "needs_approval": True, "unit": "metric", "maxDays": "2", "enabled": "no"},
        "clock": {"zone": "UTC", "execution": "elsewhere"},
        "test_async": {"delay": -1, "async": 1, "enabled": False},
        "test_external_async": {"serviceUrl": "ftp://x", "expiresIn": float("nan")},
        "googleSearch": [],
    }
    assert problems({"tools": config}) == [
        "config.tools.tavilysearch is not a supported tool; did you mean 'tavilySearch'?",
        "config.tools.webSearch is not a supported tool; did you mean 'googleSearch'?",
        "config.tools.weather.enabled: input should be a valid boolean",
        "config.tools.weather.maxDays: input should be a valid integer",
        "config.tools.weather.max_days: unknown option; did you mean 'maxDays'?",
        "config.tools.weather.needs_approval: unknown option; did you mean 'needsApproval'?",
        "config.tools.weather.unit: unknown option; did you mean 'units'?",
        "config.tools.clock.execution: input should be 'same-invocation' or 'external-dispatch'",
        "config.tools.clock.zone: unknown option; use one of async, enabled, execution, needsApproval",
        "config.tools.test_async.async: input should be a valid boolean",
        "config.tools.test_async.delay: input should be greater than or equal to 0",
        "config.tools.test_external_async.serviceUrl: string should match pattern '^https?://'",
        "config.tools.test_external_async.expiresIn: input should be a finite number",
        "config.tools.googleSearch must be an object: {} enables the tool with its defaults",
    ]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (None, "config must be an object"),
        (["weather"], "config must be an object"),
        ({"tools": ["weather"]}, r"config\.tools must be an object"),
        ({"tools": None}, r"config\.tools must be an object"),
        ({"tools": {}, "weather": {}}, r"config\.weather: move it to config\.tools\.weather"),
        ({5: {}}, r"config\.tools\.5 is not a supported tool; use one of beating, "),
        ({"weather": {5: 1}}, r"config\.tools\.weather\.5: keys should be strings"),
        ({"weather": True}, r"config\.tools\.weather must be an object"),
        ({"test_external_async": {}}, r"config\.tools\.test_external_async\.serviceUrl: field required"),
    ],
)
def test_other_shapes_are_refused(config: Any, text: str) -> None:
    """A configuration that is not an object of named objects is refused."""
    with pytest.raises(ConfigError, match=text):
        configured_tools(config, factories=OWN)


@pytest.mark.parametrize("value", [SECRET.encode(), [SECRET], {"key": SECRET}])
def test_values_are_not_repeated(value: Any) -> None:
    """Neither the error of a wrong configuration nor its causes repeat a value, which may be a secret."""
    with pytest.raises(ConfigError) as caught:
        configured_tools({"weather": {"token": value, "maxDays": SECRET, "units": value}}, factories=OWN)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__


def test_secrets_are_not_in_the_representation_of_the_provider() -> None:
    """The `repr` of the provider contains no secret of its tools."""
    tools = {"weather": {"token": SECRET}, "tavilySearch": {"apiKey": SECRET}}
    assert SECRET not in repr(configured_tools(tools, factories=OWN))


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (
            "weather",
            {"execution": "external-dispatch"},
            "its function takes no ToolContext, whose `external` says",
        ),
        ("nested", {"execution": "external-dispatch"}, "it runs an agent, which returns its result itself"),
        ("remote", {"execution": "external-dispatch"}, "an MCP server runs it, and returns its result itself"),
        ("beating", {"execution": "external-dispatch"}, "heartbeat needs execution='same-invocation'"),
        ("test_async", {"execution": "same-invocation", "async": False}, "async = false contradicts execution"),
        ("external", {"async": False}, "this tool is always asynchronous"),
        ("external", {"execution": "same-invocation"}, "this tool hands its work to another process"),
        ("googleSearch", {"needsApproval": True}, "needsApproval is not supported: the model's vendor runs this tool"),
        ("serial", {"async": True}, "a serial tool cannot run in the background"),
    ],
)
def test_options_that_a_tool_does_not_support_are_refused(name: str, options: Any, text: str) -> None:
    """The error about an option that the tool does not support says why it is refused."""
    if name == "external":
        name, options = "test_external_async", {"serviceUrl": "http://localhost", **options}
    [line] = problems({name: options})
    assert line.startswith(f"config.tools.{name}: ")
    assert text in line


@pytest.mark.parametrize(
    ("options", "execution"),
    [
        ({}, None),
        ({"async": False}, None),
        ({"async": True}, "same-invocation"),
        ({"execution": "same-invocation"}, "same-invocation"),
        ({"async": True, "execution": "same-invocation"}, "same-invocation"),
        ({"execution": "external-dispatch"}, "external-dispatch"),
        ({"async": True, "execution": "external-dispatch"}, "external-dispatch"),
    ],
)
def test_async_and_execution(options: Any, execution: str | None) -> None:
    """`execution` implies `async`, and an external tool is asynchronous without either option."""
    [echo] = configured_tools({"test_async": options}).tools
    assert echo.execution == execution
    [external] = configured_tools({"test_external_async": {"serviceUrl": "http://localhost", "async": True}}).tools
    assert external.execution == "external-dispatch"


@pytest.mark.anyio
async def test_a_configured_tool_runs_in_the_background(telemetry: Captured) -> None:
    """The model goes on at once after calling a configured tool with `async`, and gets the result later."""
    provider = configured_tools({"test_async": {"async": True, "delay": 0.01}})
    model = ScriptedModel(ToolCall("test_async", {"message": "hi"}), "wait", "done")
    await within(Agent("a", model=model, providers=[provider]).run("x"))
    pending, settled = results(model.requests[-1])
    assert (pending["status"], settled["status"]) == ("running", "completed")
    assert settled["result"] == {"message": "hi", "delay": 0.01}
    assert telemetry.find("await_tool test_async")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["booking", "test_async"])
async def test_a_configured_tool_hands_its_work_to_another_process(name: str) -> None:
    """A tool with `execution = "external-dispatch"` gets its result from elsewhere, and works itself without it."""
    call = ToolCall("booking", {"room": "Fuji"}) if name == "booking" else ToolCall("test_async", {"message": "Fuji"})
    queued.clear()
    outputs = []
    for options in ({"execution": "external-dispatch"}, {}):
        model = ScriptedModel(call, "I am waiting.", "done") if options else ScriptedModel(call, "done")
        own = {**options, "delay": 0.0} if name == "test_async" else options
        agent = Agent("a", model=model, providers=[configured_tools({name: own}, factories=OWN)])
        result = await within(agent.run("Book it."))
        if options:
            assert result.status == "awaiting_tools"
            [request] = result.external
            assert queued == ([(request.result_id, "Fuji")] if name == "booking" else [])
            settled = ExternalResult(result_id=request.result_id, output="Fuji is booked")
            assert result.checkpoint is not None
            result = await within(agent.resume(result.checkpoint, results=[settled]))
        assert (result.status, result.output) == ("completed", "done")
        outputs.append(results(ModelRequest(messages=result.messages))[-1])
    assert outputs[0]["result"] == "Fuji is booked"
    assert outputs[1] == ("Fuji is booked" if name == "booking" else {"message": "Fuji", "delay": 0.0})


@pytest.mark.anyio
async def test_a_tool_of_the_vendor_is_offered_and_async_on_it_is_one_warning() -> None:
    """A vendor's tool stays the same with `async`, and one warning is shown where the provider is made."""
    options = {"searchTypes": {"webSearch": {}}, "excludeDomains": ["example.com"]}
    with pytest.warns(UserWarning, match=r"config\.tools\.googleSearch: .*async does not change it") as caught:
        changed = configured_tools({"googleSearch": {**options, "async": True, "execution": "same-invocation"}})
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unchanged = configured_tools({"googleSearch": {**options, "async": False, "needsApproval": False}})

    class Gemini(ScriptedModel):
        provider_tools = frozenset({("gemini", "google_search")})

    for provider in (changed, unchanged):
        model = Gemini("done")
        await within(Agent("a", model=model, providers=[provider]).run("x"))
        assert [definition.name for definition in model.requests[0].tools] == ["googleSearch"]
        [search] = provider.tools
        assert isinstance(search, ProviderTool)
        assert (search.vendor, search.type, search.options) == ("gemini", "google_search", options)
        assert search.execution is None


def unannotated(options: Any) -> Tool:
    """Be a factory that does not say which options it has."""
    raise NotImplementedError


def two(first: WeatherOptions, second: WeatherOptions) -> Tool:
    """Be a factory with too many parameters."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (unannotated, "its only parameter must be annotated with a subclass of pellucid.configured.ToolOptions"),
        (two, "its only parameter must be annotated"),
        (clock(), "factories['own'] is a tool; give a function that returns it"),
        (7, "is not a callable object"),
        (lambda: "text", "factories['own'] returned str, not a Tool"),
    ],
)
def test_wrong_factories_are_refused(factory: Any, text: str) -> None:
    """A wrong factory is reported together with the problems of other tools."""
    first, second = problems({"own": {}, "weahter": {}}, own=factory)
    assert text in first
    assert second == "config.tools.weahter is not a supported tool; did you mean 'weather'?"


@pytest.mark.parametrize(("name", "text"), [("my tool", "is not 1 to 64 characters"), ("tool_search", "is reserved")])
def test_names_that_no_tool_may_have_are_refused(name: str, text: str) -> None:
    """A name that no tool may have is refused when the provider is made, not at the first listing."""
    [line] = problems({name: {}}, **{name: clock})
    assert line.startswith(f"config.tools.{name}: tool name '{name}' {text}")


def test_what_a_factory_raises_names_its_tool() -> None:
    """A factory's `ConfigError` is listed among the problems; any other exception is raised unchanged with a note."""

    def refuses() -> Tool:
        raise ConfigError("no quota left")

    def breaks() -> Tool:
        raise OSError("disk full")

    assert problems({"a": {}, "b": {}}, a=refuses, b=refuses) == [
        "config.tools.a: no quota left",
        "config.tools.b: no quota left",
    ]
    with pytest.raises(OSError, match="disk full") as caught:
        configured_tools({"own": {}}, factories={"own": breaks})
    assert caught.value.__notes__ == ["raised by the factory of config.tools.own"]


class PathOptions(ToolOptions):
    """Options that are converted."""

    model_config = ConfigDict(strict=False)

    folder: Path = Path()


def in_folder(options: PathOptions, *, folders: list[Path]) -> Tool:
    """Return a tool, and keep its folder."""
    folders.append(options.folder)
    return clock()


class Weather:
    """A factory that is an object."""

    def __call__(self, options: WeatherOptions) -> Tool:
        """Return a tool with options."""
        return weather(options)


def test_factories_can_be_any_callable() -> None:
    """A factory may be a partial or an object with `__call__`, and its options may convert values."""
    folders: list[Path] = []
    factories: Mapping[str, Factory] = {"a": partial(in_folder, folders=folders), "b": Weather()}
    tools = configured_tools({"a": {"folder": "x"}, "b": {}}, factories=factories).tools
    assert ([item.name for item in tools], folders) == (["a", "b"], [Path("x")])


def test_importing_the_factories_imports_no_extra() -> None:
    """Importing `pellucid.configured` imports no package of a configured tool."""
    code = "import sys, pellucid.configured; print('tavily' in sys.modules, 'httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
