"""The service outside that ships for tests and demos, and the tool that hands work to it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread
import pytest

from pellucid import (
    Agent,
    ExternalResult,
    Reliability,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    configured_tools,
)
from pellucid.approvals import ExternalCall
from pellucid.reliability import Rule, retry
from pellucid.testing import Job, JobCompletion, JobDelivery, OutsideService, ScriptedModel
from support.processes import PATIENCE
from support.runs import within
from support.vendor_server import Answer, answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pellucid.types import JSONValue
    from pellucid_exporters.testing import Captured
    from support.vendor_server import Received

RESULT_ID = "async_tool_5b0d"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def request(url: str, value: Any = None, **headers: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer; a value is posted."""
    content = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        with urlopen(Request(url, content, names), timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


class Completed:
    """An endpoint that takes completions.

    Attributes:
        url: Its address.
        requests: What it got.
    """

    def __init__(self, url: str, requests: list[Received], semaphore: threading.Semaphore) -> None:
        self.url = url
        self.requests = requests
        self._semaphore = semaphore

    def wait(self, count: int = 1) -> None:
        """Wait for further completions."""
        for _ in range(count):
            assert self._semaphore.acquire(timeout=PATIENCE)


@contextmanager
def completions(status: int = 200) -> Iterator[Completed]:
    """Run an endpoint for completions."""
    semaphore = threading.Semaphore(0)

    def reply(_: Received) -> Answer:
        semaphore.release()
        return answer_json({}, status=status)

    with vendor_server() as server:
        server.always(reply)
        yield Completed(server.url, server.requests, semaphore)


def configured(service: OutsideService, **options: Any) -> Tool:
    """Return the tool that hands work to a service."""
    [tool] = configured_tools({"test_external_async": {"serviceUrl": service.url, "delay": 0, **options}}).tools
    return tool


async def dispatch(tool: Tool, **external: Any) -> None:
    """Hand work to the service, as a run does."""
    path = f"/async-tools/{RESULT_ID}/complete"
    call = ExternalCall(result_id=RESULT_ID, complete_path=path, headers={"traceparent": TRACE}, **external)
    await anyio.to_thread.run_sync(tool.run, {"message": "hi"}, ToolContext(external=call))


@pytest.mark.anyio
async def test_a_job_is_completed_with_its_token_and_its_trace() -> None:
    """At the address that the run gives; a dispatch that is repeated is the same job."""
    with completions() as completed, OutsideService() as service:
        tool = configured(service)
        for _ in range(2):
            await dispatch(tool, complete_url=f"{completed.url}/x", token="t0")
        await anyio.to_thread.run_sync(completed.wait)
    [received] = completed.requests
    assert (received.method, received.path) == ("POST", "/x")
    assert received.headers["authorization"] == "Bearer t0"
    assert received.headers["traceparent"] == TRACE
    assert received.json == {"status": "completed", "output": {"message": "hi"}}
    assert service.deliveries == [JobDelivery(result_id=RESULT_ID, status=200)]
    assert [job.result_id for job in service.jobs] == [RESULT_ID]


@pytest.mark.anyio
async def test_without_a_server_the_configuration_has_address_and_token() -> None:
    """The completion path is added to `completionBaseUrl`."""
    with completions() as completed, OutsideService() as service:
        await dispatch(configured(service, completionBaseUrl=f"{completed.url}/v1/", completionBearerToken="t1"))
        await anyio.to_thread.run_sync(completed.wait)
    [received] = completed.requests
    assert received.path == f"/v1/async-tools/{RESULT_ID}/complete"
    assert received.headers["authorization"] == "Bearer t1"


@pytest.mark.anyio
async def test_a_service_that_does_not_accept_the_work_fails_the_call() -> None:
    """The text says why."""
    with OutsideService() as service:
        tool = configured(service)
    with pytest.raises(ToolError, match="The service did not accept the work: ") as caught:
        await dispatch(tool)
    assert caught.value.error_type == "unavailable"
    with vendor_server() as server:
        server.answers(answer_json({}, status=503), Answer(status=99))
        [tool] = configured_tools({"test_external_async": {"serviceUrl": server.url}}).tools
        for text in ("503", "99"):
            with pytest.raises(ToolError, match=text):
                await dispatch(tool)


@pytest.mark.anyio
async def test_a_run_pauses_for_the_service_and_resumes_with_its_results(telemetry: Captured) -> None:
    """A dispatch that the service did not accept is repeated as the same job; the completion belongs to the trace."""
    done: queue.Queue[tuple[str, JSONValue]] = queue.Queue()
    with OutsideService(on_done=lambda *values: done.put(values)) as service, vendor_server() as proxy:

        def forward(received: Received) -> Answer:
            key = received.headers["idempotency-key"]
            status, answer = request(f"{service.url}/jobs", received.body, Idempotency_Key=key)
            return answer_json(answer, status=status)

        proxy.answers(answer_json({}, status=503), forward)
        provider = configured_tools({"test_external_async": {"serviceUrl": proxy.url, "delay": 0}})
        model = ScriptedModel(ToolCall("test_external_async", {"message": "hi"}), "I wait.", "done")
        rule = Rule(when=lambda s: s.error_kind == "unavailable", then=retry(backoff=0.01), kind="busy")
        agent = Agent("a", model=model, providers=[provider], reliability=Reliability([rule]))
        paused = await within(agent.run("x"))
        result_id, response = await anyio.to_thread.run_sync(partial(done.get, timeout=PATIENCE))
        assert paused.status == "awaiting_tools"
        assert [waiting.result_id for waiting in paused.external] == [result_id]
        assert {received.headers["idempotency-key"] for received in proxy.requests} == {result_id}
        [job] = service.jobs
        assert job.headers["traceparent"].split("-")[1] == paused.trace_id
    assert paused.checkpoint is not None
    results = [ExternalResult(result_id=result_id, output=response)]
    resumed = await within(agent.resume(paused.checkpoint, results=results))
    assert (resumed.status, resumed.output) == ("completed", "done")
    assert isinstance(part := resumed.messages[-2].parts[0], ToolResult)
    assert isinstance(part.response, dict)
    assert part.response["result"] == {"message": "hi"}


def outcome(job: dict[str, Any], behavior: Any = None, **options: Any) -> list[Any]:
    """Return what the service does with a job without a complete URL."""
    results: list[Any] = []
    done = threading.Event()

    def keep(*values: Any) -> None:
        results.append(values)
        done.set()

    arguments: list[Any] = [] if behavior is None else [behavior]
    with OutsideService(*arguments, on_done=keep, on_failed=keep, **options) as service:
        assert request(f"{service.url}/jobs", job)[0] == 202
        assert done.wait(PATIENCE)
        results.append(request(f"{service.url}/jobs/{job['resultId']}"))
    return results


def test_a_job_without_a_complete_url_is_kept_and_reported() -> None:
    """For `GET /jobs/<result id>` and the callbacks."""
    job = {"resultId": "r", "input": {"x": 1}, "completeUrl": None}
    assert outcome(job) == [
        ("r", {"x": 1}),
        (200, {"resultId": "r", "status": "completed", "output": {"x": 1}}),
    ]
    assert outcome(job, lambda job: [JobCompletion(output=[job.input, 2])])[0] == ("r", [{"x": 1}, 2])
    assert outcome(job, lambda job: [JobCompletion(error="no luck")]) == [
        ("r", "no luck"),
        (200, {"resultId": "r", "status": "failed", "error": "no luck"}),
    ]


def test_a_service_can_answer_twice_wrongly_late_or_never() -> None:
    """As its behavior says for each job; closing it does not wait for what is late."""

    def behavior(job: Job) -> Sequence[JobCompletion]:
        return {
            "twice": [JobCompletion(output=1), JobCompletion(output=2)],
            "wrong": [JobCompletion(body=b"<html>")],
            "failed": [JobCompletion(error="no luck")],
            "late": [JobCompletion(delay=3600)],
            "never": [],
        }[job.result_id]

    with completions(status=409) as completed, OutsideService(behavior) as service:
        for result_id in ("late", "never", "twice", "wrong", "failed"):
            assert request(f"{service.url}/jobs", {"resultId": result_id, "completeUrl": completed.url})[0] == 202
        completed.wait(4)
        for result_id in ("late", "never"):
            assert request(f"{service.url}/jobs/{result_id}")[1]["status"] == "processing"
    assert sorted(received.body for received in completed.requests) == [
        b"<html>",
        b'{"status": "completed", "output": 1}',
        b'{"status": "completed", "output": 2}',
        b'{"status": "failed", "error": "no luck"}',
    ]
    assert sorted(delivery.result_id for delivery in service.deliveries) == ["failed", "twice", "twice", "wrong"]
    assert {delivery.status for delivery in service.deliveries} == {409}


def test_a_completion_that_nobody_takes_is_a_delivery_without_a_status() -> None:
    """The service does not repeat it."""
    with vendor_server() as server:
        url = server.url
    delivered = threading.Event()

    def behavior(_: Job) -> Iterator[JobCompletion]:
        yield JobCompletion()
        delivered.set()

    with OutsideService(behavior) as service:
        request(f"{service.url}/jobs", {"resultId": "r", "completeUrl": url})
        assert delivered.wait(PATIENCE)
    assert service.deliveries == [JobDelivery(result_id="r", status=None)]


def test_the_same_job_is_accepted_once() -> None:
    """The second answer has the status of the job."""
    with OutsideService(lambda job: []) as service:
        job = {"resultId": "r", "delay": 1}
        assert request(f"{service.url}/jobs", job, Idempotency_Key="r") == (
            202,
            {"resultId": "r", "status": "processing"},
        )
        assert request(f"{service.url}/jobs", job, Idempotency_Key="r") == (
            200,
            {"resultId": "r", "status": "processing"},
        )
        assert len(service.jobs) == 1


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        ("/jobs", b"{", {}, 400),
        ("/jobs", b"[]", {}, 400),
        ("/jobs", {"resultId": ""}, {}, 400),
        ("/jobs", {"resultId": "r", "delay": -1}, {}, 400),
        ("/jobs", {"resultId": "r", "completeUrl": "file:///etc/passwd"}, {}, 400),
        ("/jobs", {"resultId": "r"}, {"Idempotency_Key": "other"}, 400),
        ("/jobs", {"resultId": "r"}, {"Content_Length": "1048577"}, 413),
        ("/other", {"resultId": "r"}, {}, 404),
        ("/jobs/unknown", None, {}, 404),
        ("/", None, {}, 404),
    ],
)
def test_other_requests_are_refused(path: str, content: Any, headers: dict[str, str], status: int) -> None:
    """With a reason."""
    with OutsideService() as service:
        code, answer = request(f"{service.url}{path}", content, **headers)
        assert code == status
        assert answer["error"]
        assert service.jobs == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_service_is_a_program(number: signal.Signals) -> None:
    """It prints its address, and ends when it is interrupted or terminated."""
    command = [sys.executable, "-m", "pellucid.testing.outside", "--answers", "2", "--error", "no luck"]
    with completions() as completed, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert request(f"{url}/jobs", {"resultId": "r", "completeUrl": completed.url})[0] == 202
            completed.wait(2)
            process.send_signal(number)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert [received.json["status"] for received in completed.requests] == ["failed", "failed"]
