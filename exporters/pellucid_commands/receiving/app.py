"""Application that takes OTLP over HTTP: an answer of success says that the store has what was sent."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.to_thread import run_sync
from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]  # comes without types
from google.rpc.code_pb2 import Code  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.errors import StoreError
from pellucid.server.bodies import BodyReader
from pellucid.server.callers import authenticated
from pellucid.server.problems import Problem
from pellucid_commands.receiving.decoding import Undecodable, decoded, scores_of, spans_of

if TYPE_CHECKING:
    from pellucid.server import Authenticate
    from pellucid_commands.receiving.target import ReceivedStore

MOST_BYTES: Final = 20 * 1024 * 1024
"""Bytes of a body, also once it is decompressed: as the Collector's default."""
MOST_REQUESTS: Final = 8
"""Requests that are read or written at once; further ones are to come again."""
PATIENCE: Final = 30.0
"""Seconds in which a body must arrive."""

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_BODIES: Final = BodyReader(MOST_BYTES, PATIENCE)
_AGAIN: Final = {"Retry-After": "1"}
_CODES: Final = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    408: Code.DEADLINE_EXCEEDED,
    413: Code.INVALID_ARGUMENT,
    415: Code.INVALID_ARGUMENT,
    503: Code.UNAVAILABLE,
}
_PASSING: Final = (OSError, StoreError, sqlite3.Error)
"""Errors of a store that may take the same later."""

_UNKEPT_LOGS: Final = "of log records, only scores (gen_ai.evaluation.result) of a named run, trace or answer are kept"
_UNKEPT_METRICS: Final = "metrics are not kept here"
_INVALID_SPANS: Final = "spans without valid ids or times"


def intake_app(store: ReceivedStore, authenticate: Authenticate) -> Starlette:
    """Return the application that writes what it is sent into a store."""
    intake = _Intake(store, authenticate)
    paths = {"/v1/traces": intake.traces, "/v1/logs": intake.logs, "/v1/metrics": intake.metrics}
    return Starlette(routes=[Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items()])


class _Intake:
    def __init__(self, store: ReceivedStore, authenticate: Authenticate) -> None:
        self._store, self._authenticate = store, authenticate
        self._one = anyio.Lock()
        self._requests = 0

    async def traces(self, request: Request) -> Response:
        """Take spans."""
        return await self._answer(request, trace.ExportTraceServiceRequest, self._take_spans)

    async def logs(self, request: Request) -> Response:
        """Take scores; other log records are rejected."""
        return await self._answer(request, logs.ExportLogsServiceRequest, self._take_scores)

    async def metrics(self, request: Request) -> Response:
        """Reject metrics."""
        return await self._answer(request, metrics.ExportMetricsServiceRequest, _reject_metrics)

    async def _answer(self, request: Request, kind: Any, take: Callable[[Any], Any]) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        shown = content_type if content_type in {_PROTOBUF, _JSON} else _PROTOBUF
        try:
            await self._admit(request, content_type)
            return _response(await self._taken(request, kind, take, is_json=content_type == _JSON), shown)
        except Problem as problem:
            code = _CODES.get(problem.status, Code.UNKNOWN)
            status = Status(code=code, message=str(problem))
            return _response(status, shown, problem.status, dict(problem.headers))

    async def _admit(self, request: Request, content_type: str) -> None:
        await authenticated(request, self._authenticate)
        if content_type not in {_PROTOBUF, _JSON}:
            raise Problem(415, f"send {_PROTOBUF} or {_JSON}, not {content_type or 'nothing'}")

    async def _taken(self, request: Request, kind: Any, take: Callable[[Any], Any], *, is_json: bool) -> Any:
        """Return the answer to a request, whose items are in the store.

        Raises:
            Problem: the request cannot be taken, or not now.
        """
        if self._requests >= MOST_REQUESTS:
            raise Problem(503, "too many requests at once; send it again", headers=_AGAIN)
        self._requests += 1
        try:
            body, encoding = await _body(request)
            async with self._one:
                return await run_sync(partial(_take, body, encoding, kind, take, is_json=is_json))
        except Undecodable as error:
            raise Problem(400, str(error)) from error
        except _PASSING as error:
            raise Problem(503, f"the store cannot be written to: {error}", headers=_AGAIN) from error
        finally:
            self._requests -= 1

    def _take_spans(self, request: Any) -> Any:
        found = list(spans_of(request))
        spans = [span for span in found if span is not None]
        rejected = len(found) - len(spans) + self._store.take_spans(spans)
        answer = trace.ExportTraceServiceResponse()
        return _partial(answer, "rejected_spans", rejected, _INVALID_SPANS)

    def _take_scores(self, request: Any) -> Any:
        found = list(scores_of(request))
        scores = [score for score in found if score is not None]
        rejected = len(found) - len(scores) + self._store.take_scores(scores)
        return _partial(logs.ExportLogsServiceResponse(), "rejected_log_records", rejected, _UNKEPT_LOGS)


def _reject_metrics(request: Any) -> Any:
    points = sum(
        len(getattr(metric, metric.WhichOneof("data")).data_points)
        for group in request.resource_metrics
        for scoped in group.scope_metrics
        for metric in scoped.metrics
        if metric.WhichOneof("data") is not None
    )
    return _partial(metrics.ExportMetricsServiceResponse(), "rejected_data_points", points, _UNKEPT_METRICS)


def _partial(answer: Any, field: str, rejected: int, message: str) -> Any:
    if rejected:
        setattr(answer.partial_success, field, rejected)
        answer.partial_success.error_message = message
    return answer


def _take(body: bytes, encoding: str, kind: Any, take: Callable[[Any], Any], *, is_json: bool) -> Any:
    content = _inflated(body) if encoding == "gzip" else body
    return take(decoded(content, kind(), is_json=is_json))


async def _body(request: Request) -> tuple[bytes, str]:
    """Return the body of a request as it was sent, and its encoding.

    Raises:
        Problem: it is encoded in another way than by gzip, too large, or did not arrive in time.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"gzip", "identity", "none", ""}:
        raise Problem(415, f"content-encoding {encoding}: send gzip, or none", headers={"Accept-Encoding": "gzip"})
    try:
        return await _BODIES.content(request), encoding
    except ClientDisconnect as error:
        raise Problem(400, "the body ended early") from error


def _inflated(content: bytes) -> bytes:
    """Return what gzip has compressed.

    Raises:
        Problem: it is no gzip, or too large.
    """
    inflating = zlib.decompressobj(wbits=31)
    try:
        inflated = inflating.decompress(content, MOST_BYTES + 1)
    except zlib.error as error:
        raise Problem(400, f"the body is no gzip: {error}") from error
    if len(inflated) > MOST_BYTES:
        raise Problem(413, f"the body is longer than {MOST_BYTES} bytes")
    if not inflating.eof or inflating.unused_data:
        raise Problem(400, "the body is not one whole gzip")
    return inflated


def _response(message: Any, content_type: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = MessageToJson(message).encode() if content_type == _JSON else message.SerializeToString()
    return Response(content, status, headers, content_type)
