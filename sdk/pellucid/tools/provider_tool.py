"""Tools that the model's vendor runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pellucid.context import ToolContext
from pellucid.errors import ConfigError, ToolError
from pellucid.messages import PROVIDER_TOOLS, ProviderToolDefinition
from pellucid.text import nearest
from pellucid.tools.tool import Tool, ToolFunction
from pellucid.types import JSONObject


def _refuse(_: JSONObject, ctx: ToolContext) -> Any:
    raise ToolError("The model's vendor runs this tool; it cannot be called here.", error_type="provider_tool")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderTool(Tool):
    """Tool that the model's vendor runs, such as a web search.

    It is listed, permitted and offered like any tool, but the run does not dispatch it: its calls and results are
    `ServerToolCall` and `ServerToolResult` parts of the model's answer. A run whose model cannot run it fails with a
    `ConfigError` before the first request.

    ```python
    Agent("researcher", model=OpenAIModel("gpt-6-sol"), tools=[ProviderTool(vendor="openai", type="web_search")])
    ```

    Attributes:
        vendor: Vendor whose models run it: `openai` (Responses API), `anthropic` or `gemini`.
        type: Name of the tool in the vendor's API: a key of `PROVIDER_TOOLS[vendor]`.
        options: Further members of the vendor's tool definition.

    Raises:
        ConfigError: the vendor or the type is unknown.
    """

    name: str = ""
    run: ToolFunction = field(default=_refuse, repr=False)
    vendor: str
    type: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        types = PROVIDER_TOOLS.get(self.vendor)
        if types is None:
            raise ConfigError(f"ProviderTool(vendor={self.vendor!r}): {nearest(self.vendor, PROVIDER_TOOLS)}")
        if self.type not in types:
            raise ConfigError(f"ProviderTool(vendor={self.vendor!r}, type={self.type!r}): {nearest(self.type, types)}")
        if not self.name:
            object.__setattr__(self, "name", self.type)

    @cached_property
    def definition(self) -> ProviderToolDefinition:
        """Definition of the tool, as the vendor gets it."""
        return ProviderToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            vendor=self.vendor,
            type=self.type,
            options=self.options,
        )
