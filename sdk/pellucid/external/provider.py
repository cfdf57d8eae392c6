"""Provider of the tools that a configuration names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.external.factories import FACTORIES
from pellucid.external.options import Common, Factory, OptionErrors, options_type, read_options, suggestion
from pellucid.tools import ProviderTool, Tool


class ExternalTools:
    """Provider of configured tools, in the order of the configuration.

    Attributes:
        tools: The enabled tools.
    """

    id: ClassVar[str] = "external"
    kind: ClassVar[str] = "static"

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.tools = tools

    def __repr__(self) -> str:
        return f"ExternalTools({', '.join(tool.name for tool in self.tools)})"

    def list_tools(self, ctx: DiscoveryContext) -> tuple[Tool, ...]:
        """Return the enabled tools."""
        return self.tools


def external_tools(config: Mapping[str, Any], *, factories: Mapping[str, Factory] = FACTORIES) -> ExternalTools:
    """Return a provider of the tools in a configuration.

    ```python
    external_tools({"tavilySearch": {"maxResults": 5, "needsApproval": True}, "googleSearch": {}})
    external_tools(tomllib.loads(text))  # with tables such as [tools.tavilySearch]
    ```

    A tool is enabled by its presence unless it has `enabled = false`. Every tool has the options `enabled`,
    `needsApproval`, `async` and `execution` (`same-invocation` or `external-dispatch`); further ones are those of its
    factory.

    Args:
        config: Options by name of the tool; or a mapping whose `tools` is that.
        factories: Functions that create the tools, by name. Add your own: `{**FACTORIES, "weather": weather}`.

    Raises:
        ConfigError: tools or options are unknown, or options have wrong values; all of them, each with its path.
    """
    entries = _entries(config, factories)
    problems: list[str] = []
    tools: list[Tool] = []
    for name, entry in entries.items():
        path = f"config.tools.{name}"
        try:
            tool = _create(path, name, entry, factories)
        except OptionErrors as error:
            problems += error.problems
        else:
            tools += [tool] if tool is not None else []
    if problems:
        raise ConfigError("\n".join(["external tools cannot be created:", *(f"- {problem}" for problem in problems)]))
    return ExternalTools(tuple(tools))


def _entries(config: object, factories: Mapping[str, Factory]) -> Mapping[str, Any]:
    entries = config
    if isinstance(config, Mapping) and "tools" in config and "tools" not in factories:
        entries = config["tools"]
    if not isinstance(entries, Mapping):
        raise ConfigError("config.tools must be an object: options by name of the tool")
    return entries


def _create(path: str, name: str, entry: object, factories: Mapping[str, Factory]) -> Tool | None:
    """Return a tool, or None if it is disabled.

    Raises:
        OptionErrors: it cannot be created.
    """
    factory = factories.get(name)
    if factory is None:
        raise OptionErrors([f"{path} is not a supported tool; {suggestion(name, factories)}"])
    if not isinstance(entry, Mapping):
        raise OptionErrors([f"{path} must be an object: {{}} enables the tool with its defaults"])
    kind = options_type(name, factory)
    common, options = read_options(path, entry, kind)
    if not common.enabled:
        return None
    try:
        tool = factory(options) if inspect.signature(factory).parameters else factory()
    except ConfigError as error:
        raise OptionErrors([f"{path}: {error}"]) from error
    return _configured(path, tool.named(name), common)


def _configured(path: str, tool: Tool, common: Common) -> Tool:
    """Return the tool with the common options.

    Raises:
        OptionErrors: the tool does not support one.
    """
    if isinstance(tool, ProviderTool):
        if common.needs_approval:
            raise OptionErrors([f"{path}.needsApproval: the model's vendor runs this tool; its calls cannot wait"])
        if common.asynchronous or common.execution:
            warnings.warn(f"{path}: the model's vendor runs this tool; async does not change it", stacklevel=4)
        return tool
    if common.needs_approval is not None:
        tool = replace(tool, needs_approval=common.needs_approval)
    return _with_execution(path, tool, common)


def _with_execution(path: str, tool: Tool, common: Common) -> Tool:
    """Return the tool with `async` and `execution`.

    Raises:
        OptionErrors: the tool does not support them.
    """
    is_external = tool.execution == "external-dispatch"
    execution = common.execution or ("same-invocation" if common.asynchronous and not is_external else tool.execution)
    problem = ""
    if common.asynchronous is False and execution is not None:
        cause = "contradicts execution" if common.execution is not None else "this tool is always asynchronous"
        problem = f"{path}.async: {cause}; remove async"
    elif is_external and execution == "same-invocation":
        problem = f"{path}.execution: this tool hands its work to another process; use 'external-dispatch'"
    elif execution == "external-dispatch" and not is_external:
        problem = f"{path}.execution: this tool returns its result itself; use 'same-invocation'"
    if problem:
        raise OptionErrors([problem])
    return tool if execution == tool.execution else replace(tool, execution=execution)
