"""Spans in Jaeger, which they reach by the Collector: all of them, whole, and found by the searches of the docs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import pytest

from pellucid import Agent, CapturePolicy, Decision, Message, Tool, ToolCall, tool
from pellucid.testing import FunctionModel
from pellucid_exporters import File, Otlp, configure
from stack.compose import PROGRAMS
from stack.scene import until
from support import scene

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pellucid import ModelRequest
    from stack.compose import Stack
    from stack.scene import Jaeger

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack]

ERROR: Final = {"error": "true"}
SEARCHES: Final[Mapping[str, dict[str, Any]]] = {
    "ToolHubSlow": {"service": "hubs", "operation": "discover_tools slow", "minDuration": "300ms"},
    "ToolHubFailing": {"service": "hubs", "operation": "discover_tools flaky", "tags": ERROR},
    "ToolHubDown": {"service": "hubs", "operation": "discover_tools down", "tags": ERROR},
    "ToolHubCircuitOpen": {"service": "hubs", "tags": {"error.type": "circuit_open"}},
    "ToolCatalogChanging": {
        "service": "hubs",
        "operation": "discover_tools flapping",
        "tags": {"pellucid.catalog.changed": "true"},
    },
    "ToolFailing": {"service": "work", "operation": "execute_tool lookup", "tags": ERROR},
    "ModelSlow": {"service": "work", "operation": "chat slow-model", "minDuration": "500ms"},
    "ModelFailing": {"service": "work", "operation": "chat bad-model", "tags": ERROR},
    "RunFailing": {"service": "work", "operation": "invoke_agent failing", "tags": ERROR},
    "ApprovalsWaiting": {
        "service": "work",
        "operation": "invoke_agent refunds",
        "tags": {"pellucid.stop_reason": "awaiting_approval"},
    },
    "ExternalToolStuck": {"service": "durable", "operation": "execute_tool survey"},
    "ExternalToolFailing": {"service": "durable", "operation": "await_tool audit", "tags": ERROR},
}
"""Searches that the runbooks suggest, with the hubs, tools, models and agents of the scenes."""

LINKS: Final[Mapping[str, Mapping[str, str]]] = {
    "discover_tools slow": {"job": "hubs", "pellucid_provider_id": "slow"},
    "execute_tool lookup": {"job": "work", "gen_ai_tool_name": "lookup"},
    "invoke_agent failing": {"job": "work", "gen_ai_agent_name": "failing"},
    "chat bad-model": {"job": "work", "gen_ai_request_model": "bad-model"},
}
"""Labels of alerts, by the operation for which a message without a trace searches."""

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
STATUSES = {0: "unset", 1: "ok", 2: "error"}


WARNINGS = "@jaeger@warnings"
"""Attribute that Jaeger adds, such as to a span that a busy machine began late."""


def attributes_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of OTLP in JSON."""
    pairs = [(each["key"], *each["value"].items()) for each in found.get("attributes", [])]
    return {key: int(value) if kind == "intValue" else value for key, (kind, value) in pairs if key != WARNINGS}


def as_stored(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes as Jaeger's Badger storage keeps them: arrays are JSON texts."""
    pairs = attributes.items()
    return {key: json.dumps(each, separators=(",", ":")) if isinstance(each, list) else each for key, each in pairs}


def in_jaeger(span: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of a span in Jaeger."""
    return {
        "name": span["name"],
        "kind": KINDS[span["kind"]],
        "parent": span.get("parentSpanId", ""),
        "status": STATUSES[span.get("status", {}).get("code", 0)],
        "status_text": span.get("status", {}).get("message", ""),
        "nanoseconds": int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]),
        "scope": (span["scope"]["name"], span["scope"]["version"]),
        "attributes": attributes_of(span),
        "resource": attributes_of(span["resource"]),
        "events": [(each["name"], attributes_of(each)) for each in span.get("events", [])],
        "links": [(each["traceId"], each["spanId"]) for each in span.get("links", [])],
    }


def in_file(span: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of a span in a file."""
    return {
        "name": span["name"],
        "kind": span["kind"],
        "parent": span.get("parent_span_id", ""),
        "status": span["status"],
        "status_text": span.get("status_text", ""),
        "nanoseconds": round(span["duration_ms"] * 1e6),
        "scope": (span["scope"], span["scope_version"]),
        "attributes": as_stored(span["attributes"]),
        "resource": as_stored(span["resource"]),
        "events": [(each["name"], as_stored(each.get("attributes", {}))) for each in span.get("events", [])],
        "links": [(each["trace_id"], each["span_id"]) for each in span.get("links", [])],
    }


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    raise RuntimeError(f"{order} was refunded before")


async def run_everything(telemetry: Any) -> None:
    """Run an agent that has everything; then one that waits for a person, goes on, and fails to refund."""
    await scene.agent(telemetry=telemetry).run(scene.HISTORY, identity=scene.WHO)

    def answer(request: ModelRequest) -> Any:
        return "done" if request.messages[-1].role == "tool" else ToolCall("refund", {"order": "A"}, "c1")

    agent: Agent = Agent("refunds", model=FunctionModel(answer), tools=[refund], telemetry=telemetry)
    waits = await agent.run([Message("user", "Money back!")])
    assert waits.checkpoint is not None
    await agent.resume(waits.checkpoint, decisions=[Decision(waits.approvals[0].approval_id, True)])


@pytest.mark.short
@pytest.mark.parametrize(("protocol", "port"), [("http/protobuf", 4318), ("grpc", 4317)])
async def test_every_span_is_whole(stack: Stack, jaeger: Jaeger, tmp_path: Path, protocol: Any, port: int) -> None:
    """Each span of a run is in Jaeger as the file has it, with attributes, events, links, and its resource."""
    file = tmp_path / "spans.jsonl"
    telemetry = configure(
        "compared",
        otlp=Otlp(endpoint=stack["otel-collector"].url(port=port), protocol=protocol),
        file=File(file, types=["span"]),
        capture=CapturePolicy(mode="full"),
        set_global=False,
    )
    await run_everything(telemetry)
    assert telemetry.flush(30)
    telemetry.shutdown()
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"link" for span in written if span.get("links")} == {"link"}
    assert {"event" for span in written if span.get("events")} == {"event"}
    expected = {span["span_id"]: in_file(span) for span in written}
    traces = {span["trace_id"] for span in written}

    def arrived() -> dict[str, dict[str, Any]]:
        found = {span["spanId"]: in_jaeger(span) for trace in traces for span in jaeger.spans(trace)}
        return found if len(found) >= len(expected) else {}

    found = until(arrived, 60, "spans in Jaeger")
    for span_id, span in expected.items():
        assert found[span_id] == span
    assert len(found) == len(expected)


@pytest.mark.short
async def test_a_burst_that_exceeds_a_message_is_whole(stack: Stack, jaeger: Jaeger) -> None:
    """Spans that reach the Collector at once arrive, although Jaeger takes messages of 4 MiB and these have 48 MB."""

    async def read(arguments: Any, ctx: object) -> str:
        return "x y " * 7500

    def answer(request: ModelRequest) -> Any:
        return "done" if request.messages[-1].role == "tool" else [ToolCall("read", {}, f"c{n}") for n in range(200)]

    collector = stack["otel-collector"]
    telemetry = configure("burst", otlp=Otlp(endpoint=collector.url(port=4318)), set_global=False)
    agent: Agent = Agent(
        "reader", model=FunctionModel(answer), tools=[Tool(name="read", run=read)], telemetry=telemetry
    )
    os.kill(collector.pid, signal.SIGSTOP)
    try:
        runs = [await agent.run("go") for _ in range(8)]
    finally:
        os.kill(collector.pid, signal.SIGCONT)
    telemetry.shutdown(60)

    def lacking() -> set[str]:
        return {run.trace_id for run in runs if len(jaeger.spans(run.trace_id)) < 205}

    until(lambda: not lacking(), 60, "whole traces")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("alert", SEARCHES)
def test_the_searches_of_the_runbooks_find_traces(jaeger: Jaeger, alert: str) -> None:
    """Each search that a runbook suggests finds traces with the span that it names."""
    search = dict(SEARCHES[alert])
    if "tags" in search:
        search["tags"] = json.dumps(search["tags"])
    found = until(lambda: jaeger.search(**search), 120, f"search of {alert}")
    names = {span["operationName"] for trace in found for span in trace["spans"]}
    assert search.get("operation", "invoke_agent breaker") in names


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("operation", LINKS)
def test_the_search_of_a_message_finds_traces(stack: Stack, jaeger: Jaeger, tmp_path: Path, operation: str) -> None:
    """The link of an alert without a trace is a search of Jaeger's pages that finds spans of that operation."""
    data = tmp_path / "data.json"
    alert = {"labels": LINKS[operation], "annotations": {}, "status": "firing"}
    data.write_text(json.dumps({"status": "firing", "alerts": [alert]}))
    templates = stack["alertmanager"].mounted("/etc/alertmanager")
    text = '{{ template "pellucid.trace" (index .Alerts 0) }}'
    command = [
        str(PROGRAMS["amtool"]),
        "template",
        "render",
        f"--template.glob={templates}/*.tmpl",
        f"--template.text={text}",
        f"--template.data={data}",
    ]
    link = urlsplit(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    assert f"{link.scheme}://{link.netloc}{link.path}" == f"{jaeger.url}/search"
    parameters = dict(parse_qsl(link.query))
    assert parameters["operation"] == operation
    assert until(lambda: jaeger.search(**parameters), 120, f"search for {operation}")


@pytest.mark.short
async def test_a_run_is_found_by_its_ids(stack: Stack, jaeger: Jaeger) -> None:
    """A search for the id of a run or a conversation finds its trace only."""
    telemetry = configure("found", otlp=Otlp(endpoint=stack["otel-collector"].url(port=4318)), set_global=False)
    run = await scene.agent(telemetry=telemetry).run("go", identity=scene.WHO)
    telemetry.shutdown(30)
    for tags in ({"pellucid.run.id": run.run_id}, {"gen_ai.conversation.id": scene.WHO.conversation_id}):
        [trace] = until(partial(jaeger.search, service="found", tags=json.dumps(tags)), 60, str(tags))
        assert {span["operationName"] for span in trace["spans"]} >= {"invoke_agent support", "execute_tool add"}


@pytest.mark.short
def test_pages_lead_to_runs(stack: Stack, jaeger: Jaeger) -> None:
    """Jaeger's pages have the links to the viewer."""
    with urlopen(f"{jaeger.url}/", timeout=30) as answer:
        page = answer.read().decode()
    config = re.search(r"JAEGER_CONFIG = (\{.*\});", page)
    assert config is not None, page
    assert json.loads(config[1]) == json.loads((stack["jaeger"].mounted("/etc/jaeger") / "ui.json").read_text())
