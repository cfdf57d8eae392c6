"""The `mcp` subcommand: a provider or agents as an MCP server, over stdio or HTTP."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import anyio

from pellucid import Limits, ToolProvider, observe
from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid.standalone import ObservedProvider
from pellucid_commands.serving.agents import agents_in, load
from pellucid_commands.serving.numbers import port_number, seconds
from pellucid_commands.serving.options import (
    FLUSH,
    add_telemetry_arguments,
    authentication,
    cannot_listen,
    log_to_stderr,
    telemetry_of,
)
from pellucid_commands.serving.standard_streams import lines_of_input, output_to_stderr
from pellucid_exporters.options import Prometheus

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pellucid.server.callers import Authenticate


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the subcommands of `pellucid mcp`."""
    actions = parser.add_subparsers(title="actions", metavar="serve", required=True)
    described = "Serve the tools of a provider, or agents as tools, to MCP clients."
    serve = actions.add_parser("serve", help=described, description=described)
    serve.add_argument("place", metavar="MODULE:NAME", help="a tool provider, an agent, or a list of agents")
    serve.add_argument("--http", action="store_true", help="streamable HTTP at /mcp (default: stdio)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=port_number, default=8000, metavar="N", help="port (default: 8000)")
    serve.add_argument(
        "--timeout", type=seconds, default=120.0, metavar="SECONDS", help="for one call of a tool (default: 120)"
    )
    add_telemetry_arguments(serve)


def run(options: Namespace) -> int:
    """Serve until the client leaves, SIGTERM or SIGINT, and return the exit code.

    Raises:
        ConfigError: the server cannot start; the message names the remedy.
    """
    if find_spec("mcp") is None:
        raise ConfigError("mcp not installed; run: pip install 'pellucid[mcp]'")
    from pellucid.adapters.mcp_server import mcp_server

    server = mcp_server(_provider(options))
    log_to_stderr()
    app = _http_app(server, options) if options.http else None
    telemetry = telemetry_of(options, Prometheus(port=None))
    try:
        if app is None:
            anyio.run(_serve_stdio, server)
        else:
            anyio.run(_serve_http, app, options)
    finally:
        telemetry.shutdown(FLUSH)
    return 0


def _provider(options: Namespace) -> ObservedProvider[None]:
    """Return what is to be served; one that is observed keeps its limits."""
    from pellucid.adapters.mcp_server import agent_tools

    with output_to_stderr():  # standard output is for the protocol
        found = load(options.place)
    if agents := agents_in(found):
        found = agent_tools(agents)
    elif not isinstance(found, ToolProvider):
        raise ConfigError(f"{options.place!r} is not a tool provider, an agent, nor a list of agents")
    if isinstance(found, ObservedProvider):
        return found
    return observe(found, limits=Limits(tool_timeout=options.timeout))


async def _serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with anyio.create_task_group() as tasks:

        async def stop_at_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(stop_at_signal)
        async with lines_of_input() as lines, stdio_server(cast("Any", lines)) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _serve_http(app: ASGIApp, options: Namespace) -> None:
    from pellucid_commands.serving.http_server import listen

    if not await listen(app, options.host, options.port):
        raise cannot_listen(options)


def _http_app(server: Server[Any], options: Namespace) -> ASGIApp:
    """Return the application, for known callers; without a bearer token, for programs of this machine."""
    from pellucid.server import loopback_only
    from pellucid.server.pages import LOCAL_NAMES, PageGuard

    authenticate = authentication(options.host)
    app = _Authenticated(server.streamable_http_app(host=options.host), authenticate)
    return PageGuard(app, origins=(), hosts=LOCAL_NAMES) if authenticate is loopback_only else app


class _Authenticated:
    """An application for known callers."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        from pellucid.server.access import Access
        from pellucid.server.problems import Problem, answer

        if scope["type"] == "http":
            request = Request(scope)
            try:
                await Access(self._authenticate).identity(request, "submit")
            except Problem as problem:
                await answer(request, problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


COMMAND = Command(
    name="mcp",
    help="Serve tools or agents to MCP clients.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid mcp serve app.tools:registry",
        "pellucid mcp serve app.agents:support --http --port 8080",
    ),
)
