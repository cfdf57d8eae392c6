"""A service outside of the run that accepts jobs over HTTP and completes them later, for tests and demos.

As a program: `python -m pellucid.testing.outside --port 8099`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pellucid.module_names import renamed
from pellucid.types import JSONObject, JSONValue

TIMEOUT: Final = 10.0
"""Seconds for one completion request."""

MAX_JOB_BYTES: Final = 1024 * 1024

TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")


class Job(BaseModel):
    """A job, as the tool `test_external_async` posts it.

    Attributes:
        result_id: Id of the result; the same id is the same job.
        input: Arguments of the tool call.
        delay: Seconds that the job takes.
        complete_url: Address that receives the result; None to keep it for `GET /jobs/<result id>`.
        token: Bearer token for that address.
        headers: W3C Trace Context of the dispatching span.
    """

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, allow_inf_nan=False)

    result_id: str = Field(min_length=1)
    input: JSONObject = Field(default_factory=dict)
    delay: float = Field(default=0.0, ge=0)
    complete_url: str | None = Field(default=None, pattern="^https?://")
    token: str | None = Field(default=None, repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict)


@renamed(response="output")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompletion:
    """One answer of the service to a job.

    Attributes:
        delay: Seconds before it, beginning with the job or with the completion before it.
        output: Output of the job; its input by default.
        error: Reason why the job failed; None if it did not.
        body: Bytes to send in place of the JSON, for answers that are wrong; only with a complete URL.
    """

    delay: float = 0.0
    output: JSONValue = None
    error: str | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDelivery:
    """A completion that was sent to a complete URL.

    Attributes:
        result_id: Id of the result.
        status: HTTP status of the answer; None if there was none.
    """

    result_id: str
    status: int | None


Behavior: TypeAlias = Callable[[Job], Iterable[JobCompletion]]


def complete_once(job: Job) -> Iterable[JobCompletion]:
    """Complete a job with its input, after its delay."""
    return [JobCompletion(delay=job.delay)]


@dataclass(slots=True)
class _Accepted:
    job: Job
    outcome: JSONObject = field(default_factory=lambda: {"status": "processing"})
    worker: threading.Thread | None = None


class OutsideService:
    """HTTP service on 127.0.0.1 that accepts jobs and completes them later.

    ```python
    with OutsideService() as service:
        tools = configured_tools({"test_external_async": {"serviceUrl": service.url}})
    ```

    `POST /jobs` accepts a job and answers 202, or 200 if it has the `Idempotency-Key` of an accepted one. The result is
    posted to the job's `completeUrl`, with its token and its trace headers. Without that address it is kept for
    `GET /jobs/<result id>`, and given to `on_done` or `on_failed`.

    Args:
        behavior: Returns the completions of a job: none for a service that never answers, two for one that repeats
            itself, long delays for one that is late. By default one, with the job's input after the job's delay.
        on_done: Called with result id and output of a completed job without a complete URL, in a thread.
        on_failed: Called with result id and error of a failed job without a complete URL, in a thread.
        port: Port to listen on; 0 for a free one.

    Attributes:
        url: Base address.
        deliveries: Completions that were sent.
    """

    def __init__(
        self,
        behavior: Behavior = complete_once,
        *,
        on_done: Callable[[str, JSONValue], object] | None = None,
        on_failed: Callable[[str, str], object] | None = None,
        port: int = 0,
    ) -> None:
        self.deliveries: list[JobDelivery] = []
        self._behavior = behavior
        self._on_done = on_done
        self._on_failed = on_failed
        self._accepted: dict[str, _Accepted] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._server = _Server(("127.0.0.1", port), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def jobs(self) -> list[Job]:
        """Accepted jobs, in order."""
        with self._lock:
            return [accepted.job for accepted in self._accepted.values()]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for accepted in self._accepted.values():
            if accepted.worker is not None:
                accepted.worker.join(TIMEOUT)

    def accept(self, content: bytes, key: str | None) -> tuple[int, JSONObject]:
        """Return the HTTP status and the answer to a job."""
        try:
            job = Job.model_validate_json(content)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False, include_context=False)
            return 400, {"error": "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)}
        if key is not None and key != job.result_id:
            return 400, {"error": "Idempotency-Key is not resultId"}
        with self._lock:
            if (earlier := self._accepted.get(job.result_id)) is not None:
                return 200, {"resultId": job.result_id, **earlier.outcome}
            accepted = self._accepted[job.result_id] = _Accepted(job)
            accepted.worker = threading.Thread(target=self._work, args=(accepted,), daemon=True)
            accepted.worker.start()
        return 202, {"resultId": job.result_id, "status": "processing"}

    def result(self, result_id: str) -> tuple[int, JSONObject]:
        """Return the HTTP status and the answer to a request for a result."""
        with self._lock:
            accepted = self._accepted.get(result_id)
        if accepted is None:
            return 404, {"error": "unknown job"}
        return 200, {"resultId": result_id, **accepted.outcome}

    def _work(self, accepted: _Accepted) -> None:
        for completion in self._behavior(accepted.job):
            if self._closed.wait(completion.delay):
                return
            self._complete(accepted, completion)

    def _complete(self, accepted: _Accepted, completion: JobCompletion) -> None:
        job, error = accepted.job, completion.error
        output = job.input if completion.output is None else completion.output
        if error is not None:
            accepted.outcome = {"status": "failed", "error": error}
        else:
            accepted.outcome = {"status": "completed", "output": output}
        if job.complete_url is not None:
            body = json.dumps(accepted.outcome).encode() if completion.body is None else completion.body
            self.deliveries.append(JobDelivery(result_id=job.result_id, status=_post(job, job.complete_url, body)))
        elif error is not None and self._on_failed is not None:
            self._on_failed(job.result_id, error)
        elif error is None and self._on_done is not None:
            self._on_done(job.result_id, output)


def _post(job: Job, url: str, body: bytes) -> int | None:
    """Post a completion, and return the HTTP status of the answer, or None if there was none."""
    headers = {name: value for name, value in job.headers.items() if name.lower() in TRACE_HEADERS}
    headers["Content-Type"] = "application/json"
    if job.token is not None:
        headers["Authorization"] = f"Bearer {job.token}"
    try:
        with urlopen(Request(url, body, headers), timeout=TIMEOUT) as answer:  # noqa: S310  (checked to be HTTP)
            status: int = answer.status
    except HTTPError as error:
        error.close()
        return error.code
    except (OSError, HTTPException, ValueError):
        return None
    return status


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def _handler_of(service: OutsideService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT

        def log_message(self, *_: object) -> None:
            """Write nothing to standard error."""

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path != "/jobs":
                self._answer(404, {"error": "POST /jobs accepts jobs"}, close=True)
            elif not length.isdecimal() or int(length[:20]) > MAX_JOB_BYTES:
                self._answer(413, {"error": f"send at most {MAX_JOB_BYTES} bytes, with Content-Length"}, close=True)
            else:
                self._answer(*service.accept(self.rfile.read(int(length)), self.headers.get("Idempotency-Key")))

        def do_GET(self) -> None:
            _, collection, result_id = [*self.path.split("/", 2), "", ""][:3]
            self._answer(*service.result(result_id) if collection == "jobs" else (404, {"error": "GET /jobs/<id>"}))

        def _answer(self, status: int, value: JSONObject, *, close: bool = False) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if close:  # the rest of the request is not read
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

    return Handler


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service as a program, until it is interrupted or terminated."""
    parser = ArgumentParser(prog="python -m pellucid.testing.outside", description="Accept jobs and complete them.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; a free one by default")
    parser.add_argument("--answers", type=int, default=1, help="completions of each job; 0 for none")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each job takes longer than it says")
    parser.add_argument("--error", help="let each job fail for this reason")
    options: Any = parser.parse_args(arguments)

    def behavior(job: Job) -> Iterable[JobCompletion]:
        first = JobCompletion(delay=job.delay + options.delay, error=options.error)
        return [first, *[JobCompletion(error=options.error)] * (options.answers - 1)] if options.answers > 0 else []

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with OutsideService(behavior, port=options.port) as service:
        sys.stdout.write(f"{service.url}\n")
        sys.stdout.flush()
        stopped.wait()


if __name__ == "__main__":
    main()
