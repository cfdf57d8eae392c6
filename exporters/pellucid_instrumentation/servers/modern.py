"""Servers of mcp 2.x, which pass each message through a chain of middleware."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pellucid import semconv
from pellucid_instrumentation.contexts import attached
from pellucid_instrumentation.failures import error_type_of
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.servers.observed import ObservedServer, ServerSession
from pellucid_instrumentation.servers.requests import Message, ServedRequest, transport_of

_THEIRS = "OpenTelemetryMiddleware"
"""Middleware of the SDK that makes a span of each message, too; ours takes its place."""


class Modern:
    """Instrumentation of one server, as its outermost middleware.

    Args:
        server: Low-level server of the SDK.
        observed: Facts about it.
        suppress: Returns a block without the spans of a framework around the SDK.
    """

    def __init__(
        self, server: Any, observed: ObservedServer, suppress: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self.observed = observed
        self._server = server
        self._suppress = suppress
        self._run = server.run
        self._streams: list[ServerSession] = []
        self._replaced = [(at, one) for at, one in enumerate(server.middleware) if type(one).__name__ == _THEIRS]
        for _, middleware in self._replaced:
            server.middleware.remove(middleware)
        server.middleware.insert(0, self)
        server.run = self._observed_run

    def restore(self) -> None:
        """Restore the server."""
        self._server.middleware.remove(self)
        for at, middleware in self._replaced:
            self._server.middleware.insert(at, middleware)
        del self._server.run

    async def __call__(self, ctx: Any, call_next: Callable[[Any], Any]) -> Any:
        """Observe a message."""
        request = guarded(self._start, ctx)
        if request is None:
            return await call_next(ctx)
        suppressed = self._suppress() if request.is_traced else nullcontext()
        with attached(request.context, request.failed), suppressed:
            result = await call_next(guarded(_continued, ctx, request) or ctx)
        guarded(request.succeeded, result)
        if ctx.method == "initialize":
            guarded(self._initialized, ctx, result)
        return result

    def _start(self, ctx: Any) -> ServedRequest:
        params = ctx.params or {}
        is_http = True if ctx.request is not None else False if self._streams else None
        if len(self._streams) == 1 and ctx.method != "initialize":
            self._streams[0].note(_facts(ctx.protocol_version, is_http))
        target = params.get("name") if ctx.method in ("tools/call", "prompts/get") else None
        message = Message(
            method=ctx.method,
            target=target if isinstance(target, str) else None,
            arguments=params.get("arguments"),
            request_id=ctx.request_id,
            version=ctx.protocol_version if ctx.method != "initialize" else None,
            is_http=is_http,
            meta=ctx.meta,
        )
        return ServedRequest(self.observed, message)

    def _initialized(self, ctx: Any, result: Any) -> None:
        """Open a session over HTTP; one on a pair of streams is open as long as the server runs on these."""
        connection = ctx.session._connection  # noqa: SLF001  (there is no other way to its end)
        if connection.session_id is None:
            return
        session = ServerSession(self.observed)
        connection.exit_stack.callback(guarded, session.close)
        version = result.get("protocolVersion") if isinstance(result, dict) else None
        session.note(_facts(version, is_http=True))

    async def _observed_run(self, *args: Any, **kwargs: Any) -> Any:
        session = guarded(ServerSession, self.observed)
        if session is None:
            return await self._run(*args, **kwargs)
        self._streams.append(session)
        try:
            result = await self._run(*args, **kwargs)
        except BaseException as error:
            guarded(session.close, error_type_of(error) if isinstance(error, Exception) else None)
            raise
        finally:
            self._streams.remove(session)
        guarded(session.close)
        return result


def _continued(ctx: Any, request: ServedRequest) -> Any:
    """Return the message with our span as the caller, for handlers and frameworks that read it there."""
    meta = request.meta
    return ctx if meta is None else replace(ctx, meta=meta)


def _facts(version: str | None, is_http: bool | None) -> dict[str, Any]:
    facts = transport_of(is_http)
    return facts if version is None else {semconv.MCP_PROTOCOL_VERSION: version, **facts}
