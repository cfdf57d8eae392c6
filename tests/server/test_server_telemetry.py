"""The span and the metric of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.routing import Mount

from pellucid import Agent, ToolCall, semconv
from pellucid.server import bearer
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture
from support.server_scene import BASE, Scene

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan
    from starlette.requests import Request

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene that does not serve yet."""
    return Scene(tmp_path)


def requests(captured: Captured) -> list[ReadableSpan]:
    """Return the spans of requests."""
    return [span for span in captured.spans if span.kind is SpanKind.SERVER]


async def test_a_request_is_a_span_between_client_and_run(scene: Scene) -> None:
    """Its parent is the client's span; the run is below it; its name has no id, and it has no query or token."""
    with capture() as captured:
        async with scene.serve(Agent("a", model=ScriptedModel("Hello.")), authenticate=bearer("s3cret")):
            headers = {**PARENT, "Authorization": "Bearer s3cret", "Accept": "text/event-stream"}
            answer = await scene.http.post("/runs?wait=true&key=s3cret", json={"input": "Hi"}, headers=headers)
            location = answer.headers["location"]
            await scene.http.get(location, headers={"Authorization": "Bearer s3cret"})
        submit, status = requests(captured)
        assert submit.context is not None
        assert submit.parent is not None
        assert (f"{submit.context.trace_id:032x}", f"{submit.parent.span_id:016x}") == (TRACE, "b7ad6b7169203331")
        (run,) = [span for span in captured.spans if span.name == "invoke_agent a"]
        assert run.parent is not None
        assert run.parent.span_id == submit.context.span_id
        assert submit.name == "POST /runs"
        assert dict(submit.attributes or {}) == {
            "http.request.method": "POST",
            "http.route": "/runs",
            "http.response.status_code": 200,
            "url.path": "/runs",
            "url.scheme": "http",
            "server.address": httpx.URL(BASE).host,
            "client.address": "127.0.0.1",
            "network.protocol.version": "1.1",
        }
        assert (status.name, (status.attributes or {})["url.path"]) == ("GET /runs/{run_id}", location)
        assert all("s3cret" not in span.to_json() for span in captured.spans)
        (point,) = [
            point
            for point in captured.metrics
            if point.name == "http.server.request.duration" and point.attributes["http.route"] == "/runs"
        ]
        assert (point.unit, point.bounds, point.count) == ("s", semconv.HTTP_SERVER_DURATION.buckets, 1)
        assert point.attributes == {
            "http.request.method": "POST",
            "http.route": "/runs",
            "http.response.status_code": 200,
            "url.scheme": "http",
        }


async def test_a_result_continues_the_trace_of_its_sender(scene: Scene) -> None:
    """The settlement is below the span of the request that returned the result."""
    with capture() as captured:
        agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "done"), tools=[scene.job()])
        async with scene.serve(agent):
            await scene.http.post("/runs", json={"input": "Hi"})
            (job,) = scene.jobs
            await scene.complete(job, output=1)
            call = await scene.runs.call(job.result_id)
        assert call is not None
        complete = requests(captured)[-1]
        assert complete.name == "POST /async-tools/{result_id}/complete"
        assert complete.context is not None
        assert f"{complete.context.span_id:016x}" in str(call.settlement_trace)


async def test_the_tags_of_a_body_are_those_of_the_run(scene: Scene) -> None:
    """Wrong ones are an error of the request."""
    with capture() as captured:
        async with scene.serve(Agent("a", model=ScriptedModel("x"))):
            await scene.http.post("/runs", json={"input": "Hi", "tags": ["beta"]})
            wrong = await scene.http.post("/runs", json={"input": "Hi", "tags": ["x" * 201]})
        assert captured.span("invoke_agent").attributes[semconv.RUN_TAGS] == ("beta",)
    assert (wrong.status_code, wrong.json()["path"]) == (400, "tags")


async def test_errors(scene: Scene) -> None:
    """Only those of the server are errors of the span; unknown methods and paths have no name of their own."""

    def authenticate(request: Request) -> None:
        if "x-fail" in request.headers:
            raise RuntimeError("password=hunter2")

    with capture() as captured:
        async with scene.serve(Agent("a", model=ScriptedModel("x")), authenticate=authenticate):
            await scene.http.get("/runs/x")
            await scene.http.get("/runs/x", headers={"x-fail": "1"})
            await scene.http.request("BREW", "/none")
            await scene.http.get("/readyz")
        facts: list[Any] = [
            (span.name, span.status.status_code, (span.attributes or {}).get("error.type"))
            for span in requests(captured)
        ]
        assert facts == [
            ("GET /runs/{run_id}", StatusCode.UNSET, None),
            ("GET /runs/{run_id}", StatusCode.ERROR, "RuntimeError"),
            ("HTTP", StatusCode.UNSET, None),
        ]
        assert (requests(captured)[1].attributes or {})["http.response.status_code"] == 500
        assert all("hunter2" not in span.to_json() for span in captured.spans)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (b"agents.example:8080", "agents.example"),
        (b"[::1]:80", "::1"),
        (b"[::1]", "::1"),
        (b"a" * 999, f"{'a' * 256}…"),
        (b"", "s"),
    ],
)
async def test_the_address_is_that_of_the_request(scene: Scene, host: bytes, address: str) -> None:
    """Without its port; the socket's, if the request names none; bounded, because the client writes it."""
    with capture() as captured:
        async with scene.serve(Agent("a", model=FunctionModel(lambda _: "Hello."))):
            request = {"type": "http", "method": "GET", "path": "/runs/x", "query_string": b"", "scheme": "http"}
            headers = [(b"host", host)] if host else []
            asgi = {**request, "headers": headers, "server": ("s", 80), "client": None, "http_version": "2"}
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            await scene.app(asgi, None, send)  # type: ignore[arg-type]  # it has no body to receive
        [span] = requests(captured)
    attributes = dict(span.attributes or {})
    assert attributes["network.protocol.version"] == "2"
    assert "client.address" not in attributes
    assert attributes["server.address"] == address


async def test_an_application_with_instrumentation_keeps_its_own(scene: Scene) -> None:
    """There is no second span, and no second measurement."""
    with capture() as captured:
        async with scene.serve(Agent("a", model=FunctionModel(lambda _: "Hello."))):
            tracer = captured.tracer_provider.get_tracer("application")
            with tracer.start_as_current_span("theirs", kind=SpanKind.SERVER):
                await scene.http.post("/runs", json={"input": "Hi"})
        assert [span.name for span in requests(captured)] == ["theirs"]
        assert "http.server.request.duration" not in {point.name for point in captured.metrics}


async def test_an_application_below_a_path(scene: Scene) -> None:
    """Locations, routes and the document have the path at which the application mounted the server."""
    with capture() as captured:
        async with scene.serve(Agent("a", model=ScriptedModel("Hello."))):
            transport = httpx.ASGITransport(Starlette(routes=[Mount("/agents", scene.app)]))
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
                answer = await http.post("/agents/runs", json={"input": "Hi"})
                assert answer.headers["location"].startswith("/agents/runs/")
                assert (await http.get(answer.headers["location"])).json() == answer.json()
                assert (await http.get("/agents/openapi.json")).json()["servers"] == [{"url": "/agents"}]
                assert (await http.get("/agents/readyz")).status_code == 200
        names = [span.name for span in requests(captured)]
        assert names == ["POST /agents/runs", "GET /agents/runs/{run_id}", "GET /agents/openapi.json"]
