"""A tool provider for MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import Any, Final, Self, TextIO, TypedDict, Unpack

from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import Tool as ServerTool
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.context import DiscoveryContext, Identity, ToolContext
from pellucid.errors import ConfigError
from pellucid.mcp.annotations import annotations_of
from pellucid.mcp.calls import call
from pellucid.mcp.credentials import Auth, Credentials, Headers
from pellucid.mcp.elicitation import Elicit, Elicitor
from pellucid.mcp.exchange import ByteLimits
from pellucid.mcp.handshake import Negotiation
from pellucid.mcp.invalid_tools import InvalidTool
from pellucid.mcp.links import Links
from pellucid.mcp.listing import Lifetimes, Plan
from pellucid.mcp.names import exposed_names
from pellucid.mcp.pool import Pool
from pellucid.mcp.resources import Library, Prompt, Resource
from pellucid.mcp.transports import Target, in_process, once, over_http, over_stdio, over_transport
from pellucid.messages import Message, Part
from pellucid.providers.provider import OnInvalid, Tools
from pellucid.tools import Mcp, Tool
from pellucid.tools.catalog import check_catalog
from pellucid.tools.eliciting import ElicitingTool, RenamedElicitingTool
from pellucid.tools.hidden import visible
from pellucid.tools.tool import BrokenTool, NeedsApproval, OnInvalidOutput, RenamedTool
from pellucid.types import JSONObject, JSONValue

MAX_LISTING_BYTES: Final = 2**24
MAX_RESULT_BYTES: Final = 2**25


class Options(TypedDict, total=False):
    """Options of every `MCPProvider`, which documents them."""

    prefix: bool
    objective: float | None
    slo: float | None
    owner: str | None
    runbook: str | None
    timeout: float | None
    call_timeout: float | None
    ttl: float | None
    stale_if_error: float
    stale_while_revalidate: float
    patience: float | None
    tell_model: bool
    on_invalid: OnInvalid
    on_invalid_output: OnInvalidOutput | None
    needs_approval: NeedsApproval
    max_listing_bytes: int
    max_result_bytes: int
    elicitation: Elicit | None
    follow_links: bool
    protocol: Negotiation


class MCPProvider:
    """A tool provider that lists and calls the tools of an MCP server; create it by `stdio()`, `http()` or `connect()`.

    The provider connects on first use or at `async with`, once for each event loop. The next use after a lost
    connection reopens it. After a failure to connect or to list, the provider waits before it tries again (0.5 s,
    doubling up to 30 s while the server keeps failing). A call that was active when the connection was lost is not
    repeated, because the server may have processed it.

    A listing is cached for the lifetime that the server states (`ttlMs`), else for `ttl`, else until the server
    announces a change, if it announces them and its protocol is older than 2026-07-28. Otherwise each listing is
    fetched anew, because a cached one could become stale unnoticed. An announced change or a lost connection ends the
    lifetime.

    Args:
        target: Address or command of the server.
        id: Value of `pellucid.provider.id`, and the server's name in prefixed tool names.
        prefix: Name the tools `mcp__<id>__<tool>`. Names are always changed to match `[A-Za-z0-9_-]{1,64}`.
        objective: Seconds that a listing should take; exported for alerts.
        slo: Share of the listings that should meet the objective, such as 0.99; exported for alerts.
        owner: Owner of the server; a label of its alerts.
        runbook: Address of the server's own runbook; an annotation of its alerts.
        timeout: Seconds of wall-clock time to connect and to list all pages; also for each request of `resources()`,
            `read()`, `prompts()` and `prompt()`.
        call_timeout: Seconds for each tool call; defaults to `Limits.tool_timeout`.
        ttl: Lifetime of a listing in seconds if the server states none, less a jitter of up to a tenth.
        stale_if_error: Seconds after its lifetime during which an old listing is served if a new one fails.
        stale_while_revalidate: Seconds after its lifetime during which an old listing is served at once while a new
            one is fetched. After an announced change callers wait for the new one.
        patience: Seconds that an iteration waits for the server to start, connect and list, counted from the start of
            that. Then the run goes on with the previous listing, if there is one, or without the server's tools.
        tell_model: Whether the instructions mention a server whose tools are missing for lack of patience.
        on_invalid: `quarantine` leaves invalid tools out and emits an event, instead of failing.
        on_invalid_output: Treatment of a result that does not fit the output schema that the server lists: `error`,
            `report` or None, as for `Tool`.
        needs_approval: Whether a person must approve calls of the server's tools, as for `Tool`: `destructive` asks
            unless a tool says that it is read-only or not destructive, which is only as true as the server is honest.
        max_listing_bytes: Most bytes of a listing, with all its pages, after decompression. A larger one fails.
        max_result_bytes: Most bytes of any other message of the server, such as the result of a call.
        elicitation: Answers the server's questions to a person. With `pause`, the run pauses: they are in
            `RunResult.elicitations`. A function gets an `Elicitation` and returns the values of a form, True to accept,
            or None to decline; durable runs pause. Protocols before 2026-07-28 do not let a run pause: without a
            function, and in durable runs, questions are declined. Servers are told that nobody answers if it is None.
        follow_links: Whether a tool that reads resources, `mcp__<id>__read_resource`, is offered to an identity once a
            result in this process has links to some. It reads only these.
        protocol: `legacy` opens a session of a protocol before 2026-07-28 with a server that has both, for tools that
            ask by a request of their own (`ctx.elicit()`), which the newer one does not have.

    Raises:
        ConfigError: an option is invalid.
    """

    detached: Final = True
    measures_requests: Final = True

    def __init__(
        self,
        target: Target,
        *,
        id: str,  # noqa: A002  (named in the public contract)
        prefix: bool = False,
        objective: float | None = None,
        slo: float | None = None,
        owner: str | None = None,
        runbook: str | None = None,
        timeout: float | None = 30.0,
        call_timeout: float | None = None,
        ttl: float | None = None,
        stale_if_error: float = 0.0,
        stale_while_revalidate: float = 0.0,
        patience: float | None = None,
        tell_model: bool = False,
        on_invalid: OnInvalid = "fail",
        on_invalid_output: OnInvalidOutput | None = "error",
        needs_approval: NeedsApproval = False,
        max_listing_bytes: int = MAX_LISTING_BYTES,
        max_result_bytes: int = MAX_RESULT_BYTES,
        elicitation: Elicit | None = None,
        follow_links: bool = False,
        protocol: Negotiation = "auto",
    ) -> None:
        self.id = id
        self.kind = target.kind
        self.objective = objective
        self.slo, self.owner, self.runbook = slo, owner, runbook
        self.timeout, self.patience = timeout, patience
        self.on_invalid = on_invalid
        self._on_invalid_output = on_invalid_output
        self._needs_approval = needs_approval
        self.server_address, self.server_port = target.address, target.port
        self._prefix = prefix
        self._plan = Plan(
            id=id,
            target=target,
            objective=objective,
            timeout=timeout,
            call_timeout=call_timeout,
            lifetimes=Lifetimes(ttl=ttl, stale_if_error=stale_if_error, stale_while_revalidate=stale_while_revalidate),
            patience=patience,
            tell_model=tell_model,
            elicitor=Elicitor(id, elicitation) if elicitation is not None else None,
            limits=ByteLimits.of(id, listing=max_listing_bytes, result=max_result_bytes),
            protocol=protocol,
            build=self._build,
        )
        self._pool = Pool(self._plan)
        self._library = Library(id, self._pool.connection, target.attributes, timeout)
        self._links = Links(id, self.read, target.attributes) if follow_links else None
        self._server_names: Mapping[str, str] = {}
        self._entered = 0

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        id: str,  # noqa: A002
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        errlog: TextIO | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Start a server process and communicate over its standard input and output.

        Args:
            command: The executable.
            *args: Arguments of the executable.
            id: The server's name.
            env: Environment variables, added to the few that the MCP SDK passes on as safe (`PATH`, `HOME`, ...).
            cwd: The working directory of the process.
            errlog: A file for the standard error, which otherwise goes to the logger `pellucid.mcp` at level DEBUG.
            **options: See the class.

        Raises:
            ConfigError: an option is invalid, or `command` has its arguments, too.
        """
        words, is_program = command.split(), which(command) is not None or Path(cwd or "", command).exists()
        if len(words) > 1 and not args and not is_program:
            separate = ", ".join(map(repr, words))
            raise ConfigError(
                f"MCPProvider {id!r}: command={command!r} is not the name of a program; "
                f"pass arguments separately: MCPProvider.stdio({separate}, id={id!r})"
            )
        parameters = StdioServerParameters(command=command, args=list(args), env=dict(env or {}), cwd=cwd)
        return cls(over_stdio(parameters, errlog), id=id, **options)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        id: str,  # noqa: A002
        headers: Headers | None = None,
        auth: Auth | None = None,
        idle_timeout: float = 300.0,
        **options: Unpack[Options],
    ) -> Self:
        """Communicate over streamable HTTP.

        Args:
            url: The server's URL.
            id: The server's name.
            headers: HTTP headers of every request, for example `Authorization`; or a function of the identity that
                returns them, sync or async, which is called for each request.
            auth: Authorization of requests: one of `pellucid.mcp.oauth`, an `httpx2.Auth`, or a function of the
                identity that returns one.
            idle_timeout: Seconds without requests after which the connection of an identity is closed.
            **options: See the class.

        A function sees the tenant and the principal of the run; `conversation_id` is None. Each such identity has
        sessions, cached tools and a back-off of its own; those of the 1,000 that were used last are kept.

        Raises:
            ConfigError: an option is invalid.
        """
        return cls(over_http(Credentials(url, headers, auth, idle_timeout)), id=id, **options)

    @classmethod
    def connect(
        cls,
        server: MCPServer | Server[Any] | Transport | Callable[[], Transport] | StdioServerParameters | str,
        *,
        id: str,  # noqa: A002
        **options: Unpack[Options],
    ) -> Self:
        """Connect to a server object in this process, a custom transport, process parameters or a URL.

        A transport can be entered only once. Pass a function that returns a new one, so that the connection can be
        reopened and used in several event loops.

        Raises:
            ConfigError: `server` is none of these.
        """
        match server:
            case str():
                target = over_http(Credentials(server))
            case StdioServerParameters():
                target = over_stdio(server, None)
            case MCPServer() | Server():
                target = in_process(server)
            case AbstractAsyncContextManager():
                target = over_transport(once(server))
            case _ if callable(server):
                target = over_transport(server)
            case _:
                raise ConfigError(
                    f"MCPProvider {id!r}: {server!r} is not an MCP server, transport, StdioServerParameters or URL"
                )
        return cls(target, id=id, **options)

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the server's tools.

        Raises:
            DiscoveryError: the server could not be reached or did not list its tools.
        """
        tools = await self._pool.catalog(ctx.identity).list_tools(ctx)
        return tools if self._links is None else self._links.added(tools, ctx.identity)

    async def resources(self, *, identity: Identity | None = None) -> tuple[Resource, ...]:
        """Return the server's resources; none if it offers none.

        Raises:
            ToolError: the server could not be reached, or refused the request.
        """
        return await self._library.resources(identity)

    async def read(self, uri: str, *, identity: Identity | None = None) -> tuple[Part, ...]:
        """Return the content of a resource: `TextPart`s and `BlobPart`s.

        Raises:
            ToolError: the server could not be reached, refused the request, or asks a person first.
        """
        return await self._library.read(uri, identity)

    async def prompts(self, *, identity: Identity | None = None) -> tuple[Prompt, ...]:
        """Return the server's prompts; none if it offers none.

        Raises:
            ToolError: the server could not be reached, or refused the request.
        """
        return await self._library.prompts(identity)

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, identity: Identity | None = None
    ) -> tuple[Message, ...]:
        """Return a prompt as messages, which may be the input of a run.

        Raises:
            ToolError: the server could not be reached, refused the request, or asks a person first.
        """
        return await self._library.prompt(name, arguments, identity)

    def server_name(self, name: str) -> str:
        """Return the server's own name of a listed tool.

        Raises:
            KeyError: the server did not list the tool.
        """
        return self._server_names[name]

    async def aclose(self) -> None:
        """Close the connections of all event loops and wait until they are closed.

        Closing twice does nothing. `async with` opens the provider again.
        """
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        self._pool.open()
        self._entered += 1
        try:
            if not self._plan.target.by_identity:
                await self._pool.connection(None)
        except BaseException:
            self._entered -= 1
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered -= 1
        if not self._entered:
            await self.aclose()

    def _build(self, listed: list[ServerTool | InvalidTool]) -> Tools:
        names = exposed_names([tool.name for tool in listed], self.id, prefix=self._prefix)
        attributes = {semconv.MCP_METHOD_NAME: "tools/call", **self._plan.target.attributes}
        tools = tuple(self._tool(tool, names[tool.name], attributes) for tool in listed)
        check_catalog(self.id, tools, quarantine=self.on_invalid == "quarantine")
        listed_names = {exposed: name for name, exposed in names.items()}
        self._server_names = {**self._server_names, **listed_names} if self._plan.target.by_identity else listed_names
        return tools

    def _tool(self, tool: ServerTool | InvalidTool, name: str, attributes: Mapping[str, AttributeValue]) -> Tool:
        run = partial(self._call, tool.name, name)
        if isinstance(tool, InvalidTool):
            problem = f"the server's tool {name!r} violates the protocol: {tool.problem}"
            return BrokenTool(name=name, run=run, source=Mcp(self.id), mode="mcp", problem=problem)
        plain, renamed = (Tool, RenamedTool) if self._plan.elicitor is None else (ElicitingTool, RenamedElicitingTool)
        create = plain if visible(tool.name) == tool.name else partial(renamed, listed_name=tool.name)
        return create(
            name=name,
            description=tool.description or tool.title or "",
            input_schema=tool.input_schema,
            output_schema=tool.output_schema,
            on_invalid_output=self._on_invalid_output,
            needs_approval=self._needs_approval,
            annotations=annotations_of(tool),
            run=run,
            source=Mcp(self.id),
            timeout=self._plan.call_timeout,
            mode="mcp",
            attributes=attributes,
        )

    async def _call(self, name: str, exposed: str, arguments: JSONObject, ctx: ToolContext) -> JSONValue:
        connect = partial(self._pool.connection, ctx.identity)
        value = await call(self.id, connect, name, arguments, ctx, exposed=exposed, elicitor=self._plan.elicitor)
        if self._links is not None:
            self._links.add(ctx.identity, value)
        return value
