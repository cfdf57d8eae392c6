"""Each attribute that the reference describes is emitted by some run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    Context,
    Decision,
    DiscoveryContext,
    DiscoveryProvider,
    Limits,
    Message,
    ModelError,
    Reliability,
    Tool,
    ToolCall,
    ToolRegistry,
    semconv,
    static_tools,
)
from pellucid.durable import CallTokens, DurableRuns, NATSQueue, NewCall, open_store
from pellucid.mcp import MCPProvider
from pellucid.models import OpenAIModel
from pellucid.reliability import Rule, retry
from pellucid.semconv import durable, newest
from pellucid.server import create_app
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture
from support import openai_wire, scene
from support.mcp_servers import LegacyHttp, modern_server, serving
from support.runs import attributes, within
from support.vendor_server import answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pellucid_exporters.testing import Captured

DECLARED: Any = {"objective": 0.1, "slo": 0.9, "owner": "payments", "runbook": "https://wiki.example/hub"}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("quiet_opentelemetry"),
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

NAMES = {
    value
    for name, value in (vars(semconv) | vars(newest) | vars(durable)).items()
    if name.isupper() and isinstance(value, str) and "." in value and name != "EXCEPTION_EVENT"
}
RELIABILITY = Reliability([Rule(when=lambda s: s.error is not None, then=retry(backoff=0.0), kind="again")])
ELSEWHERE = {
    semconv.MCP_SERVER_NAME,  # tests/instrumentation
    semconv.MCP_SERVER_VERSION,
    semconv.SAMPLING_REASON,
    semconv.SAMPLING_EARLY,
    semconv.TOKEN_MODALITY,
    semconv.HTTP_RETRY_AFTER,
    semconv.HTTP_RESEND_COUNT,
    semconv.DURABLE_CALLBACK,
    semconv.AGENT_PREVIOUS_DIGEST,  # tests/durable/test_code_changes.py
    semconv.REPLAY_OF,
    semconv.WAKEUP_DELAY_SECONDS,  # tests/sdk/hubs/test_requests.py
    semconv.TELEMETRY_REASON,
    semconv.METRIC_NAME,  # tests/exporters/test_metric_limits.py
}
"""Names that need a tail sampler, an opt-in, a server that fails, a callback URL, another version of an agent, a replay
or telemetry that is lost."""


class Flaky:
    """A provider that fails at first."""

    id = "flaky"
    asked = 0

    def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Fail, then answer."""
        self.asked += 1
        if self.asked == 1:
            raise OSError("down")
        return []


async def call(provider: MCPProvider, *tools: str) -> None:
    """Let an agent call tools of a server, one after the other."""
    model = ScriptedModel(*(ToolCall(tool, {}) for tool in tools), "done")
    await within(Agent("a", model=model, providers=[provider]).run("go"), 20)


async def over_mcp(make_app: Callable[[], Any], *tools: str) -> None:
    """Call tools of a server over HTTP."""
    with serving(make_app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub") as provider:
            await call(provider, *tools)


async def beyond_the_window() -> None:
    """Run an agent whose conversation does not fit into the window."""
    history = [Message(role, "word " * 1_000) for role in ("user", "assistant") * 2]
    await Agent("a", model=ScriptedModel("ok"), context=Context(window=9_000)).run("word " * 2_000, history=history)


async def to_a_limit() -> None:
    """Reach a limit of what a run spends: only a closing answer fits."""
    model = ScriptedModel("done")
    limits = Limits(max_model_calls=1)
    await within(Agent("a", model=model, tools=[scene.add], limits=limits, version="1.4.0").run("hi"))
    await beyond_the_window()


async def with_openai() -> None:
    """Ask a model of OpenAI."""
    counts = {"text_tokens": 9, "image_tokens": 9, "audio_tokens": 9}
    usage = {
        **openai_wire.CHAT_USAGE,
        "prompt_tokens_details": {**counts, "cached_tokens": 20, "cached_tokens_details": counts},
        "completion_tokens_details": counts,
    }
    answer = {
        **openai_wire.completion({"content": "hi"}, usage=usage),
        "service_tier": "flex",
        "system_fingerprint": "fp_1",
    }
    with vendor_server() as server:
        server.always(lambda asked: answer_json(answer))
        model = OpenAIModel("gpt-x", base_url=f"{server.url}/v1", api_key="key-of-a-reader")
        await within(Agent("a", model=model, settings={"extra": {"service_tier": "flex"}}).run("hi"))
        await within(model.aclose())


async def in_store(path: Path, telemetry: Captured) -> set[str]:
    """Work on durable runs, and serve them; return the names on the gauges, which are gone when the worker stops."""
    agent = Agent("a", model=ScriptedModel("hi"))
    async with open_store(f"sqlite:///{path}/runs.db") as store, anyio.create_task_group() as tasks:
        await store.submit("other", "agent", None)
        claim = await store.claim("worker", ["agent"], 60.0)
        assert claim is not None
        await store.register(claim, [NewCall("async_tool_x", "add", "call")])
        runs = DurableRuns(store, [agent])
        transport = httpx.ASGITransport(create_app(runs, tokens=CallTokens("k" * 32)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await client.get("/runs/other")
        await runs.settle("async_tool_x", output="done")
        await runs.submit(agent, "hi")
        tasks.start_soon(runs.work)
        metrics = {semconv.DURABLE_PASSES.name, semconv.DURABLE_RUNS.name}
        with anyio.fail_after(60):
            while not metrics <= {point.name for point in telemetry.metrics}:  # noqa: ASYNC110  (no event)
                await anyio.sleep(0.01)
        names = {name for point in telemetry.metrics for name in point.attributes}
        async with NATSQueue("nats://127.0.0.1:1", buffer=1) as queue:
            unheard = DurableRuns(store, [], queue=queue)
            for _ in range(2):
                await unheard.submit("nobody", "hi")
        tasks.cancel_scope.cancel()
    return names


def in_events(telemetry: Captured) -> set[str]:
    """Return our names of span events and their attributes."""
    events = [event for span in telemetry.spans for event in span.events]
    return {name for event in events for name in (event.name, *(event.attributes or {}))} & NAMES


async def test_what_is_described_is_emitted(tmp_path: Path) -> None:
    """Runs of all kinds together emit exactly the names that there are."""
    with capture(capture=CapturePolicy("redacted", max_bytes=512)) as telemetry:
        await within(scene.agent().run(scene.HISTORY, identity=scene.WHO, tags=["beta"]))
        agent = scene.agent()
        agent.on("run.started", lambda event: 1 / 0)
        async with agent.stream("hi", identity=scene.WHO) as events:
            async for _ in events:
                pass
        with pytest.raises(ModelError):
            await within(Agent("a", model=ScriptedModel(OSError("down"))).run("hi"))
        await within(Agent("a", model=ScriptedModel("hi"), providers=[Flaky()], reliability=RELIABILITY).run("hi"))
        found_twice = [static_tools([scene.add]), ToolRegistry([scene.add])]
        await within(scene.agent(tools=(), providers=found_twice, collisions="prefix").run("hi"))
        model = ScriptedModel(ToolCall("tool_search", {"query": "add"}), "done")
        await within(Agent("a", model=model, tools=[scene.add], registry_mode="lazy").run("hi"))
        add = replace(scene.add, serial=True, output_schema={"type": "boolean"}, on_invalid_output="report")
        twice = ScriptedModel([ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 3, "b": 4})], "done")
        await within(Agent("a", model=twice, tools=[add]).run("hi"))
        await within(scene.agent(policy=lambda request: "allow").run("hi"))
        model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "done")
        agent = Agent("a", model=model, tools=[scene.add], policy=lambda request: "ask")
        waits = await within(agent.run("hi"))
        assert waits.checkpoint is not None
        decision = Decision(waits.approvals[0].approval_id, approved=True, decided_by="ann")
        await within(agent.resume(waits.checkpoint, decisions=[decision]))
        listings = ([scene.add], [replace(scene.add, description="Subtract.")])
        model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "done")
        hubs = [
            DiscoveryProvider(FakeHub(lambda number: listings[number > 1]), id="hub", ttl=0.0, **DECLARED),
            DiscoveryProvider(FakeHub(), id="slow", patience=0.0, tell_model=True),
        ]
        await within(Agent("a", model=model, providers=hubs, instructions=lambda _: "Be brief.").run("hi"))
        background = replace(scene.add, execution="same-invocation")
        model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "wait", "done")
        await within(Agent("a", model=model, tools=[background]).run("hi"))
        await to_a_limit()
        await with_openai()
        gauges = await in_store(tmp_path, telemetry)
        await over_mcp(modern_server().streamable_http_app, "refuse")
        await over_mcp(lambda: LegacyHttp().app, "count")
    emitted = gauges | {name for span in telemetry.spans for name in attributes(span)}
    emitted |= {name for point in telemetry.metrics for name in point.attributes} | in_events(telemetry)
    assert emitted <= NAMES
    assert NAMES - emitted | {semconv.WAKEUP_DELAY_SECONDS} == ELSEWHERE  # emitted only where the machine is busy
