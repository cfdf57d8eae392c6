"""Answers of receivers. One can say that it rejected a part of the items, which the SDK's exporters ignore."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes without types
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

    from pellucid_exporters.options import Signal

OnAnswer: TypeAlias = Callable[[int, str], None]
"""Called with the number of items that a receiver rejected, and its message, if it has either to say."""

_ANSWERS: Final[Mapping[Signal, Any]] = {
    "traces": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
}


def read_http(session: requests.Session, signal: Signal, on_answer: OnAnswer) -> None:
    """Read the answers that a session receives."""

    def read_content(response: requests.Response, *_: Any, **__: Any) -> None:
        if response.ok:
            try:
                read_answer(_ANSWERS[signal].FromString(response.content), on_answer)
            except DecodeError:
                return  # an answer that is not OTLP's rejects nothing

    session.hooks["response"].append(read_content)


def read_answer(answer: Any, on_answer: OnAnswer) -> None:
    """Read one answer."""
    partial = answer.partial_success
    rejected = sum(value for field, value in partial.ListFields() if field.name.startswith("rejected_"))
    if rejected or partial.error_message:
        on_answer(rejected, partial.error_message)


class ReadingStub:
    """Stub of a gRPC service that reads the answers."""

    def __init__(self, stub: Any, on_answer: Callable[[], OnAnswer | None]) -> None:
        self._stub = stub
        self._on_answer = on_answer

    def Export(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802  (the name of the remote procedure)
        """Send a request and return the answer."""
        answer = self._stub.Export(*arguments, **options)
        if (on_answer := self._on_answer()) is not None:
            read_answer(answer, on_answer)
        return answer


class ReadsAnswers:
    """Mixin of the SDK's gRPC exporters, which make their stub in a private method: without it, answers are not read.

    Attributes:
        on_answer: Called with what the answers reject.
    """

    on_answer: OnAnswer | None = None

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()  # type: ignore[misc]  # of the exporter
        own = vars(self)
        own["_client"] = ReadingStub(own["_client"], lambda: self.on_answer)
