"""LangChain: tools of a provider for its agents, and its tools as ours."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool

from pellucid.adapters.content import observed, text_of
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.providers import ToolProvider
from pellucid.tools import Tool
from pellucid.tools.tool import ToolOptions
from pellucid.types import JSONObject

__all__ = ["from_langchain", "langchain_tools"]


async def langchain_tools(provider: ToolProvider[None]) -> list[BaseTool]:
    """Return the tools that a provider, or the result of `observe`, lists now, for agents of LangChain.

    LangChain takes tools once, so agents do not see later changes. Calls of tools with `needs_approval` are refused.

    Raises:
        DiscoveryError: the provider failed.
    """
    source = observed(provider)
    return [
        _PellucidTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.input_schema,
            handle_tool_error=True,
            call=partial(source.call_tool, tool.name),
        )
        for tool in await source.list_tools()
    ]


class _PellucidTool(BaseTool):
    """Tool of a provider; a `StructuredTool` would keep arguments such as `config` for itself."""

    call: Any  # a function of the arguments

    def _run(self, /, **arguments: Any) -> str:
        raise NotImplementedError("tools of Pellucid are async; use ainvoke()")

    async def _arun(self, /, **arguments: Any) -> str:
        result = await self.call(arguments)
        if result.is_error:
            raise ToolException(text_of(result))
        return text_of(result)


def from_langchain(theirs: BaseTool, **options: Unpack[ToolOptions]) -> Tool:
    """Return a tool of LangChain as ours.

    Args:
        theirs: The tool.
        **options: Those of `pellucid.tool`, such as `timeout` and `needs_approval`.
    """

    async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
        request = {"type": "tool_call", "id": ctx.tool_call_id, "name": theirs.name, "args": arguments}
        message = await theirs.ainvoke(request)
        if not isinstance(message, ToolMessage):
            return message
        if message.status == "error":
            raise ToolError(message.text)
        return message.content

    function = convert_to_openai_tool(theirs)["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(name=theirs.name, description=theirs.description, input_schema=schema, run=run, **options)
