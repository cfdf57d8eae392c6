"""Names that applications give to MCP servers in their frameworks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from types import ModuleType
from typing import Any, Final, TypeAlias

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.hubs import Endpoint
from pellucid_instrumentation.patches import Patches

MOST_NAMES: Final = 4096
"""Maximum number of servers with names, so that those made per request do not fill the memory."""

Named: TypeAlias = tuple[Endpoint, str | None]
"""A server, and the name that the application gave to it."""


class Names:
    """Names by server. Objects of frameworks are seen as they are made, and their connections later, in any task."""

    def __init__(self) -> None:
        self._names: BoundedMap[str, str] = BoundedMap(MOST_NAMES, by_use=False)

    def named(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint with its name, if it has one."""
        return replace(endpoint, name=self._names.get(_key(endpoint)))

    def plan(self, patches: Patches) -> None:
        """Plan the patches that read names from objects of frameworks as they are made."""

        def patch(class_name: str, read: Callable[[Any], Iterable[Named]]) -> Callable[[ModuleType], None]:
            def construct(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                wrapped(*args, **kwargs)
                guarded(self._add, read, instance)

            def apply(module: ModuleType) -> None:
                owner = getattr(module, class_name, None)  # absent in other versions of the framework
                if owner is not None:
                    patches.method(owner, "__init__", construct)

            return apply

        for module, class_name, read in _NAMED:
            patches.plan(module, patch(class_name, read))

    def _add(self, read: Callable[[Any], Iterable[Named]], instance: Any) -> None:
        for endpoint, name in read(instance):
            if name:
                self._names.put(_key(endpoint), name)


def stdio(parameters: Any) -> Endpoint:
    """Return the endpoint of a server process, from an object or mapping with `command` and `args`."""
    command, arguments = _get(parameters, "command"), _get(parameters, "args") or ()
    return Endpoint(kind="mcp.stdio", command=(str(command), *map(str, arguments)))


def http(url: object) -> Endpoint:
    """Return the endpoint of a server over HTTP."""
    return Endpoint(kind="mcp.http", url=str(url))


def _endpoint(described: Any) -> Endpoint | None:
    """Return the endpoint of an object or mapping with a `url` or a `command`."""
    if url := _get(described, "url"):
        return http(url)
    return stdio(described) if _get(described, "command") else None


def _get(described: Any, name: str) -> Any:
    return described.get(name) if isinstance(described, dict) else getattr(described, name, None)


def _key(endpoint: Endpoint) -> str:
    return blake2b(json.dumps([endpoint.url, endpoint.command]).encode(), digest_size=16).hexdigest()


def _described(described: Any, name: str | None) -> Iterator[Named]:
    if described is not None and (endpoint := _endpoint(described)) is not None:
        yield endpoint, name


def _openai(server: Any) -> Iterator[Named]:
    # Without a name, the framework makes one of the whole URL.
    is_default = str(server.name).startswith(("stdio: ", "sse: ", "streamable_http: "))
    return _described(server.params, None if is_default else server.name)


def _pydantic_ai(toolset: Any) -> Iterator[Named]:
    return _described(getattr(toolset.client, "transport", None), toolset._explicit_id)  # noqa: SLF001


def _langchain(client: Any) -> Iterator[Named]:
    for name, connection in client.connections.items():
        yield from _described(connection, name)


def _config(transport: Any) -> Iterator[Named]:
    for name, server in transport.config.mcpServers.items():
        yield from _described(server, name)


def _itself(tool: Any) -> Iterator[Named]:
    return _described(tool, tool.name)


_NAMED: Final[tuple[tuple[str, str, Callable[[Any], Iterable[Named]]], ...]] = (
    ("pydantic_ai.mcp", "MCPToolset", _pydantic_ai),
    ("agents.mcp.server", "MCPServerStdio", _openai),
    ("agents.mcp.server", "MCPServerSse", _openai),
    ("agents.mcp.server", "MCPServerStreamableHttp", _openai),
    ("langchain_mcp_adapters.client", "MultiServerMCPClient", _langchain),
    ("fastmcp.client.transports.config", "MCPConfigTransport", _config),
    ("agent_framework._mcp", "MCPStdioTool", _itself),
    ("agent_framework._mcp", "MCPStreamableHTTPTool", _itself),
)
"""Classes whose objects know the name and the address of a server: their module, and what reads both."""
