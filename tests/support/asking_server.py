"""An MCP server that asks a person before it answers calls, on the protocol of 2026-07-28."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    SamplingMessage,
    TextContent,
)

from support.mcp_servers import tool_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

SIZE = {
    "type": "object",
    "properties": {"size": {"type": "string", "enum": ["S", "M"]}, "count": {"type": "integer", "minimum": 1}},
    "required": ["size"],
}


class AskingServer:
    """A server with tools that ask first; a result tells what the server got.

    Attributes:
        calls: State and answers of each call, in order.
        can_ask: Whether the client said of each call that somebody answers.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, dict[str, Any]]] = []
        self.can_ask: list[bool] = []
        self.server: Server[Any] = Server("asking", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        names = ("order", "sign", "both", "twice", "sample", "later", "broken", "nested", "roots", "quiet")
        return ListToolsResult(tools=[tool_of(name) for name in names])

    async def _call(
        self, ctx: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        answers = {key: each.model_dump(exclude_none=True) for key, each in (params.input_responses or {}).items()}
        for answer in answers.values():
            answer.pop("result_type", None)
        self.calls.append((params.request_state, answers))
        capabilities = ctx.session.client_capabilities
        self.can_ask.append(capabilities is not None and capabilities.elicitation is not None)
        if (asked := self._asked(params.name, params.request_state)) is not None:
            return asked
        return CallToolResult(content=[TextContent(text="kept" if params.name == "quiet" else json.dumps(answers))])

    def _asked(self, name: str, state: str | None) -> InputRequiredResult | None:  # noqa: C901, PLR0911  (one for each tool)
        form = ElicitRequest(params=ElicitRequestFormParams(message="Which size?", requested_schema=SIZE))
        sign = ElicitRequest(params=ElicitRequestURLParams(message="Sign.", url="https://sign.example/7"))
        match name, state:
            case "order", None:
                return InputRequiredResult(input_requests={"q": form}, request_state="ordered")
            case "sign", None:
                return InputRequiredResult(input_requests={"s": sign}, request_state="signed")
            case "both", None:
                return InputRequiredResult(input_requests={"q": form, "s": sign}, request_state="both")
            case "twice", None | "first":
                asked = "first" if state is None else "second"
                return InputRequiredResult(input_requests={"q": form}, request_state=asked)
            case "later", None | "1" | "2":
                return InputRequiredResult(request_state=str(int(state or 0) + 1))
            case "broken", None:
                schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "["}}}
                bad = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema=schema))
                return InputRequiredResult(input_requests={"q": bad}, request_state="broken")
            case "quiet", None:
                schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
                word = ElicitRequest(params=ElicitRequestFormParams(message="Which word?", requested_schema=schema))
                return InputRequiredResult(input_requests={"q": word}, request_state="quiet")
            case "nested", None:
                schema = {"type": "object", "properties": {"at": {"type": "object"}}}
                deep = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema=schema))
                return InputRequiredResult(input_requests={"q": deep}, request_state="nested")
            case "roots", None:
                return InputRequiredResult(input_requests={"r": ListRootsRequest()}, request_state="rooted")
            case "sample", None:
                message = SamplingMessage(role="user", content=TextContent(text="hi"))
                sample = CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=5))
                return InputRequiredResult(input_requests={"m": sample}, request_state="sampled")
        return None
