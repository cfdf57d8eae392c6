"""Servers of mcp 1.x, which handle each message in a method."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from pellucid import semconv
from pellucid_instrumentation.contexts import attached
from pellucid_instrumentation.failures import error_type_of
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.servers.observed import ObservedServer, ServerSession
from pellucid_instrumentation.servers.outcomes import Outcome, answered_with
from pellucid_instrumentation.servers.requests import Message, ServedRequest, transport_of

_STATELESS: Final = 4
"""Position of the argument `stateless` of `Server.run`."""


class _Running:
    """A run of a server on a pair of streams.

    Attributes:
        legacy: The instrumentation.
        session: The session; None if each request has a run of its own.
    """

    def __init__(self, legacy: Legacy, session: ServerSession | None) -> None:
        self.legacy = legacy
        self.session = session


_running: Final[ContextVar[_Running | None]] = ContextVar("pellucid_mcp_server", default=None)


class Legacy:
    """Instrumentation of one server, whose methods it wraps.

    Args:
        server: Low-level server of the SDK.
        observed: Facts about it.
    """

    def __init__(self, server: Any, observed: ObservedServer) -> None:
        self.observed = observed
        self._server = server
        self._run = server.run
        self._handle_request = server._handle_request  # noqa: SLF001  (1.x has no other place that sees each request)
        self._handle_notification = server._handle_notification  # noqa: SLF001
        server.run = self._observed_run
        server._handle_request = self._observed_request  # noqa: SLF001
        server._handle_notification = self._observed_notification  # noqa: SLF001
        _Handshakes.add()

    def restore(self) -> None:
        """Restore the server."""
        for name in ("run", "_handle_request", "_handle_notification"):
            delattr(self._server, name)
        _Handshakes.remove()

    async def _observed_run(self, *args: Any, **kwargs: Any) -> Any:
        is_stateless = kwargs.get("stateless") or (len(args) > _STATELESS and args[_STATELESS])
        session = None if is_stateless else guarded(ServerSession, self.observed)
        token = _running.set(_Running(self, session))
        error_type: str | None = None
        is_abandoned = False
        try:
            return await self._run(*args, **kwargs)
        except BaseException as error:
            is_abandoned = isinstance(error, GeneratorExit)
            error_type = error_type_of(error) if isinstance(error, Exception) else None
            raise
        finally:
            if not is_abandoned:
                _running.reset(token)
            if session is not None:
                guarded(session.close, error_type)

    async def _observed_request(self, message: Any, req: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
        request = guarded(self._start, message, req, session)
        if request is None:
            return await self._handle_request(message, req, session, *args, **kwargs)
        return await _observe(request, message, self._handle_request(message, req, session, *args, **kwargs))

    async def _observed_notification(self, notify: Any) -> Any:
        request = guarded(self._notified, notify)
        if request is None:
            return await self._handle_notification(notify)
        return await _observe(request, None, self._handle_notification(notify))

    def start_handshake(self, responder: Any, session: Any) -> ServedRequest:
        """Return the observation of an `initialize`."""
        return self._start(responder, responder.request.root, session)

    def _start(self, message: Any, req: Any, session: Any) -> ServedRequest:
        params = getattr(req, "params", None)
        target = getattr(params, "name", None) if req.method in ("tools/call", "prompts/get") else None
        is_http = getattr(message.message_metadata, "request_context", None) is not None
        version = _version_of(session)
        request = ServedRequest(
            self.observed,
            Message(
                method=req.method,
                target=target,
                arguments=getattr(params, "arguments", None),
                request_id=message.request_id,
                version=version,
                is_http=is_http,
                meta=getattr(message.request_meta, "model_extra", None),
            ),
        )
        running = _running.get()
        if running is not None and running.session is not None and version is not None:
            running.session.note({semconv.MCP_PROTOCOL_VERSION: version, **transport_of(is_http)})
        return request

    def _notified(self, notify: Any) -> ServedRequest:
        meta = getattr(getattr(notify, "params", None), "meta", None)
        extra: Mapping[str, Any] | None = getattr(meta, "model_extra", None)
        return ServedRequest(self.observed, Message(method=notify.method, meta=extra))


async def _observe(request: ServedRequest, message: Any, handling: Any) -> Any:
    """Await the handling of a message within its span."""
    answer = _Answer(message)
    guarded(answer.listen, request)
    with attached(request.context, request.failed):
        handled = await handling
    guarded(answer.end, request)
    return handled


class _Answer:
    """Answer to a request, as it is sent.

    Args:
        message: Object of the SDK that sends it; None for a notification, which has no answer.
    """

    def __init__(self, message: Any) -> None:
        self._message = message
        self._response: Any = None

    def listen(self, request: ServedRequest) -> None:
        """Note the answer when it is sent, and give handlers our span as the caller."""
        message = self._message
        if message is None:
            return
        respond = message.respond

        async def observed_respond(response: Any) -> Any:
            self._response = response
            return await respond(response)

        message.respond = observed_respond
        for name, value in (request.meta or {}).items():
            setattr(message.request_meta, name, value)

    def end(self, request: ServedRequest) -> None:
        """Record it."""
        if self._message is not None and self._message.cancelled:
            request.answered(Outcome("cancelled"))
        elif self._response is None:
            request.succeeded(None)
        elif isinstance(code := getattr(self._response, "code", None), int):
            request.answered(answered_with(code, self._response.message))
        else:
            request.succeeded(getattr(self._response, "root", self._response))


class _Handshakes:
    """Patch of the sessions of the SDK, which answer `initialize` before a server sees it; one for all servers."""

    _lock: Final = threading.Lock()
    _users = 0
    _original: Any = None

    @classmethod
    def add(cls) -> None:
        """Patch, unless that is done."""
        with cls._lock:
            cls._users += 1
            if cls._users > 1:
                return
            sessions = _loaded("mcp.server.session").ServerSession
            original = cls._original = sessions._received_request  # noqa: SLF001

            async def received(session: Any, responder: Any) -> Any:
                running = _running.get()
                if running is None or getattr(responder.request.root, "method", None) != "initialize":
                    return await original(session, responder)
                request = guarded(running.legacy.start_handshake, responder, session)
                if request is None:
                    return await original(session, responder)
                return await _observe(request, responder, original(session, responder))

            sessions._received_request = received  # noqa: SLF001

    @classmethod
    def remove(cls) -> None:
        """Restore the sessions after the last server."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0:
                _loaded("mcp.server.session").ServerSession._received_request = cls._original  # noqa: SLF001


def _version_of(session: Any) -> str | None:
    """Return the version that a session has negotiated, as the SDK does it."""
    asked = getattr(session.client_params, "protocolVersion", None)
    if asked is None:
        return None
    if asked in _loaded("mcp.shared.version").SUPPORTED_PROTOCOL_VERSIONS:
        return str(asked)
    return str(_loaded("mcp.types").LATEST_PROTOCOL_VERSION)


def _loaded(module: str) -> Any:
    """Return a module of the SDK, which the server was made with."""
    return sys.modules[module]
