"""Provider of the tools that a configuration names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from pellucid.configured.factories import FACTORIES
from pellucid.configured.options import Factory, SharedOptions, options_type, read_options
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.text import nearest
from pellucid.tools import ProviderTool, Tool
from pellucid.tools.catalog import RegistryMode
from pellucid.tools.names import problem_of
from pellucid.tools.tool import AgentTool, FunctionTool

_MODE: Final = "registry_mode"


@dataclass(frozen=True, slots=True)
class ConfiguredTools:
    """Provider of configured tools.

    Attributes:
        tools: The enabled tools, in the order of the configuration.
        registry_mode: With `lazy`, the model finds these tools with `tool_search`.
    """

    tools: tuple[Tool, ...]
    registry_mode: RegistryMode = "full"
    id: str = field(default="external", init=False)
    kind: str = field(default="static", init=False)
    measures_requests: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.registry_mode not in get_args(RegistryMode):
            raise ConfigError(f"ConfiguredTools(registry_mode={self.registry_mode!r}): must be 'full' or 'lazy'")

    def list_tools(self, ctx: DiscoveryContext) -> tuple[Tool, ...]:
        """Return the enabled tools."""
        return self.tools


def configured_tools(config: Mapping[str, Any], *, factories: Mapping[str, Factory] = FACTORIES) -> ConfiguredTools:
    """Return a provider of the tools in a configuration.

    ```python
    configured_tools({"tavilySearch": {"maxResults": 5, "needsApproval": True}, "googleSearch": {}})
    configured_tools(tomllib.loads(text))  # with tables such as [tools.tavilySearch]
    ```

    A tool is enabled by its presence unless it has `enabled = false`. Every tool has the options `enabled`,
    `needsApproval`, `async` and `execution` (`same-invocation` or `external-dispatch`); further ones are those of its
    factory. With `registry_mode = "lazy"` beside them, the model finds the tools with `tool_search`; a tool that its
    vendor runs is offered at once.

    Args:
        config: Options by name of the tool; or a mapping whose `tools` is that.
        factories: Functions that create the tools, by name. Add your own: `{**FACTORIES, "weather": weather}`.

    Raises:
        ConfigError: tools or options are unknown, or options have wrong values; all of them, each with its path.
    """
    problems: list[str] = []
    tools: list[Tool] = []
    entries = dict(_entries(config, factories, problems))
    mode = entries.pop(_MODE, "full")
    if mode not in get_args(RegistryMode):
        problems.append(f"config.tools.{_MODE}: input should be 'full' or 'lazy'")
    for name, entry in entries.items():
        try:
            tool = _create(f"config.tools.{name}", name, entry, factories)
        except ConfigError as error:
            problems.append(str(error))
        else:
            tools += [tool] if tool is not None else []
    if problems:
        raise ConfigError("\n".join(["configured tools cannot be created:", *problems]))
    if mode == "lazy":
        tools = [tool if isinstance(tool, ProviderTool) else tool.searched() for tool in tools]
    return ConfiguredTools(tuple(tools), mode)


def _entries(config: object, factories: Mapping[str, Factory], problems: list[str]) -> Mapping[str, Any]:
    """Return the options by name of the tool; `config` may be a whole file of which they are the table `tools`."""
    if not isinstance(config, Mapping):
        raise ConfigError("config must be an object: options by name of the tool")
    if "tools" not in config:
        return config
    problems += [f"config.{name}: move it to config.tools.{name}" for name in config if name in factories]
    if not isinstance(config["tools"], Mapping):
        raise ConfigError("config.tools must be an object: options by name of the tool")
    return config["tools"]


def _create(path: str, name: str, entry: object, factories: Mapping[str, Factory]) -> Tool | None:
    """Return a tool, or None if it is disabled.

    Raises:
        ConfigError: it cannot be created.
    """
    if name not in factories:
        raise ConfigError(f"{path} is not a supported tool; {nearest(str(name), [*factories, _MODE])}")
    if (problem := problem_of(name)) is not None:
        raise ConfigError(f"{path}: {problem}")
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path} must be an object: {{}} enables the tool with its defaults")
    factory = factories[name]
    kind = options_type(name, factory)
    shared, options = read_options(path, entry, kind)
    if not shared.enabled:
        return None
    try:
        tool: object = factory(options) if kind is not None else factory()
        if not isinstance(tool, Tool):
            raise ConfigError(f"factories[{name!r}] returned {type(tool).__name__}, not a Tool")  # noqa: TRY301
        return _configured(path, tool.named(name), shared)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        error.add_note(f"raised by the factory of {path}")
        raise


def _configured(path: str, tool: Tool, shared: SharedOptions) -> Tool:
    """Return the tool with the options that every tool has.

    Raises:
        ConfigError: the tool does not support one.
    """
    if isinstance(tool, ProviderTool):
        if shared.needs_approval:
            raise ConfigError("needsApproval is not supported: the model's vendor runs this tool")
        if shared.asynchronous or shared.execution:
            warnings.warn(f"{path}: the model's vendor runs this tool; async does not change it", stacklevel=4)
        return tool
    if shared.needs_approval is not None:
        tool = replace(tool, needs_approval=shared.needs_approval)
    return _with_execution(tool, shared)


def _with_execution(tool: Tool, shared: SharedOptions) -> Tool:
    """Return the tool with `async` and `execution`.

    Raises:
        ConfigError: the tool does not support them.
    """
    execution = shared.execution or tool.execution or ("same-invocation" if shared.asynchronous else None)
    if execution is not None and shared.asynchronous is False:
        if shared.execution is not None:
            raise ConfigError("async = false contradicts execution; remove one of them")
        raise ConfigError("async = false is not supported: this tool is always asynchronous")
    if execution == tool.execution:
        return tool
    if tool.execution == "external-dispatch":  # what it enqueues would have nowhere to go
        raise ConfigError(f"execution = {execution!r} is not supported: this tool hands its work to another process")
    if execution == "external-dispatch" and (reason := _answers_itself(tool)) is not None:
        raise ConfigError(f"execution = {execution!r} is not supported: {reason}")
    return replace(tool, execution=execution)


def _answers_itself(tool: Tool) -> str | None:
    """Return why a tool cannot hand its work to another process, or None if it can, with `ctx.external`."""
    if isinstance(tool, AgentTool):
        return "it runs an agent, which returns its result itself"
    if tool.mode == "mcp":
        return "an MCP server runs it, and returns its result itself"
    if isinstance(tool, FunctionTool) and not tool.takes_context:
        return "its function takes no ToolContext, whose `external` says where the result goes"
    return None
