"""Stores for tests and pictures of the viewer: runs of real agents, and thousands of spans with times of their own."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from opentelemetry import trace

from pellucid import (
    Agent,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelResponse,
    PermissionRequest,
    TextPart,
    ToolCall,
    Usage,
    Verdict,
    semconv,
    tool,
)
from pellucid.errors import PellucidError
from pellucid.testing import FakeHub, ScriptedModel
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid_exporters import Telemetry

QUEUED: Final = 500
"""Runs whose spans fit into the queue of the store."""

MINUTE: Final = 60 * 10**9
QUESTION: Final = "Order A-1017 has not arrived. Where is it, and can I have my money back?"
HOSTILE: Final = (
    "<script>alert('run')</script><img src=x onerror=alert(1)> {{7*7}} \u202egnp.exe \x1b[31mred\x07 \u0645\u0631\u062d"
)

HOSTILE_MARKDOWN: Final = (
    f"# {HOSTILE}\n\n**{HOSTILE}** [a](javascript:alert(1)) [b](data:text/html;base64,PHNjcmlwdD4=) <b onclick=x>\n\n"
    "![c](https://evil.example/c.png) ![d](data:image/svg+xml;base64,PHN2Zy8+) <javascript:alert(1)>\n\n"
    '```html\n<iframe src=//evil.example>\n```\n\n[e]: javascript:alert(1)\n[e] [f](https://evil.example/"onclick=x)\n'
)


@tool
def find_order(number: str) -> dict[str, Any]:
    """Look up an order by its number.

    Args:
        number: Number of the order, such as `A-1017`.
    """
    lines = [{"article": "Wool jumper", "size": "M", "price": 59.9}, {"article": "Scarf", "size": None, "price": 19.5}]
    return {"number": number, "status": "shipped", "carrier": "Posten", "total": 79.4, "lines": lines}


@tool
def track_parcel(carrier: str, number: str) -> str:
    """Ask a carrier where a parcel is.

    Args:
        carrier: Name of the carrier.
        number: Number of the order.
    """
    raise RuntimeError(f"{carrier} does not know parcel {number}; it was handed over less than 24 hours ago")


@tool
def refund(number: str, amount: float) -> str:
    """Refund an order."""
    return f"{amount} for {number}"


@tool
def search_articles(query: str) -> str:
    """Search the help centre."""
    return HOSTILE


@tool
def read_article(number: int) -> str:
    """Read an article of the help centre."""
    return "Parcels need three working days."


def policy(request: PermissionRequest) -> str | Verdict:
    """Keep refunds from callers that nobody knows."""
    if request.tool.name == "refund" and request.identity is None:
        return Verdict("deny", "refunds need a signed-in customer")
    return "allow"


def providers(*, latency: float = 0.02, faults: Sequence[BaseException | None] = ()) -> list[DiscoveryProvider]:
    """Return the hubs of the shop; that of the help centre is slow and may fail."""
    orders = FakeHub([find_order, track_parcel, refund], latency=0.002)
    articles = FakeHub(lambda call: [search_articles, read_article][: 1 + call // 2], latency=latency, faults=faults)
    return [
        DiscoveryProvider(orders, id="orders", ttl=60, objective=0.1),
        DiscoveryProvider(articles, id="help-centre", ttl=0, objective=0.01, stale_if_error=3600),
    ]


def answer(*parts: str | ToolCall, tokens: int) -> ModelResponse:
    """Return an answer of a model with usage."""
    return ModelResponse(
        message=Message(
            role="assistant", parts=tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
        ),
        usage=Usage(input_tokens=tokens, output_tokens=tokens // 12),
    )


async def tell(telemetry: Telemetry, *, last: Any = None, identity: Identity | None = None) -> None:
    """Run the agent of the shop once: a tool fails in the second iteration; `last` replaces the final answer."""
    model = ScriptedModel(
        answer(
            ToolCall("find_order", {"number": "A-1017"}), ToolCall("search_articles", {"query": "late"}), tokens=812
        ),
        answer(ToolCall("track_parcel", {"carrier": "Posten", "number": "A-1017"}), tokens=1_130),
        last or answer("Posten has your parcel since yesterday; it should arrive tomorrow.", tokens=1_391),
        name="gpt-6-luna",
    )
    instructions = "You answer customers of a shop for knitwear. Be brief, and never promise a refund."
    agent = Agent(
        "support", model=model, providers=providers(), instructions=instructions, policy=policy, telemetry=telemetry
    )
    try:
        await agent.run(QUESTION, identity=identity)
    except PellucidError:
        assert isinstance(last, Exception)


async def shop(telemetry: Telemetry) -> None:
    """Run the agents of the shop: two runs that complete, and one that fails."""
    await tell(telemetry, identity=Identity(principal="ann"))
    await tell(telemetry)
    await tell(telemetry, last=RuntimeError("the vendor answered 529: overloaded, retry later"))


def history(telemetry: Telemetry, runs: int, hours: float = 24.0) -> None:
    """Write runs with times in the past: two iterations each, on four hubs, of which `search` has become slow."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    seed = random.Random(7)
    now = time.time_ns()
    span_of_time = int(hours * 60) * MINUTE
    for number in range(runs):
        start = now - span_of_time + span_of_time * number // runs
        _write_run(tracer, seed, number, start, is_slow=number > runs * 0.8)
        if number % QUEUED == 0:
            assert telemetry.flush(PATIENCE)


def _write_run(tracer: trace.Tracer, seed: random.Random, number: int, start: int, *, is_slow: bool) -> None:
    agent = ("support", "triage", "billing", "research")[number % 4]
    is_failed = number % 37 == 5
    root_attributes = {
        semconv.PHASE: semconv.RUN,
        semconv.RUN_ID: f"{seed.getrandbits(128):032x}",
        semconv.AGENT_NAME: agent,
        semconv.OUTCOME: semconv.FAILED if is_failed else semconv.COMPLETED,
        semconv.ITERATIONS: 2,
        semconv.USAGE_INPUT_TOKENS: 900 + seed.randrange(4000),
        semconv.USAGE_OUTPUT_TOKENS: 60 + seed.randrange(300),
        semconv.COST_USD: round(seed.random() * 0.02, 5),
    }
    root = tracer.start_span(f"{semconv.INVOKE_AGENT} {agent}", start_time=start, attributes=root_attributes)
    context = trace.set_span_in_context(root)
    moment = start
    for iteration in (1, 2):
        for name, attributes, took in _boundaries(seed, is_slow=is_slow, is_failed=is_failed and iteration == 2):
            common = {semconv.RUN_ID: root_attributes[semconv.RUN_ID], semconv.ITERATION: iteration}
            span = tracer.start_span(name, context, start_time=moment, attributes={**common, **attributes})
            moment += int(took * 1e9)
            if attributes[semconv.OUTCOME] == semconv.FAILED:
                span.set_status(trace.StatusCode.ERROR, "the vendor answered 529: overloaded")
            span.end(moment)
    if is_failed:
        root.set_attribute(semconv.ERROR_TYPE, "model_error")
        root.set_status(trace.StatusCode.ERROR, "the vendor answered 529: overloaded")
    root.end(moment)


def _boundaries(seed: random.Random, *, is_slow: bool, is_failed: bool) -> list[tuple[str, dict[str, Any], float]]:
    """Return the boundaries of an iteration: name, attributes, seconds."""
    found: list[tuple[str, dict[str, Any], float]] = []
    for hub, typical in (("search", 0.9 if is_slow else 0.06), ("git", 0.03), ("time", 0.004), ("tickets", 0.15)):
        outcome = semconv.FAILED if hub == "tickets" and seed.random() < 0.01 else semconv.COMPLETED
        attributes: dict[str, Any] = {
            semconv.PHASE: semconv.DISCOVERY,
            semconv.PROVIDER_ID: hub,
            semconv.DISCOVERY_CACHE: "miss" if seed.random() < 0.4 else "hit",
            semconv.OUTCOME: outcome,
            semconv.CATALOG_DIGEST: "c" * 32,
        }
        if outcome == semconv.FAILED:
            attributes[semconv.ERROR_TYPE] = "ConnectError"
        found.append((f"{semconv.DISCOVER_TOOLS} {hub}", attributes, typical * seed.lognormvariate(0, 0.5)))
    attributes = {semconv.PHASE: semconv.COMPOSE, semconv.OUTCOME: semconv.COMPLETED, semconv.COMPOSE_MESSAGES: 3}
    found.append((semconv.COMPOSE_REQUEST, attributes, 0.0002))
    messages = [{"role": "user", "parts": [{"type": "text", "content": f"{seed.random()} so" * 10}]}]
    model = seed.choice(("gpt-6-luna", "claude-5-haiku"))
    attributes = {
        semconv.PHASE: semconv.INFERENCE,
        semconv.REQUEST_MODEL: model,
        semconv.OUTCOME: semconv.FAILED if is_failed else semconv.COMPLETED,
        semconv.INPUT_MESSAGES: json.dumps(messages),
    }
    found.append((f"{semconv.CHAT} {model}", attributes, seed.lognormvariate(0, 0.6)))
    tool_name = seed.choice(("git_log", "search_articles", "find_order"))
    attributes = {semconv.PHASE: semconv.DISPATCH, semconv.TOOL_NAME: tool_name, semconv.OUTCOME: semconv.COMPLETED}
    found.append((f"{semconv.EXECUTE_TOOL} {tool_name}", attributes, 0.05 * seed.lognormvariate(0, 0.7)))
    return found


def thousands(telemetry: Telemetry, spans: int = 5_000) -> None:
    """Write one run of many tool calls."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    start = time.time_ns() - 10 * MINUTE
    run_id = {semconv.RUN_ID: "5" * 32}
    attributes = {**run_id, semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "crawler", semconv.OUTCOME: "completed"}
    root = tracer.start_span(f"{semconv.INVOKE_AGENT} crawler", start_time=start, attributes=attributes)
    context = trace.set_span_in_context(root)
    step = 8 * MINUTE // spans
    for number in range(spans):
        facts = {semconv.PHASE: semconv.DISPATCH, semconv.TOOL_NAME: "fetch_page", semconv.OUTCOME: semconv.COMPLETED}
        places: dict[str, Any] = {**run_id, semconv.ITERATION: 1 + number // 10}
        moment = start + number * step
        span = tracer.start_span(
            f"{semconv.EXECUTE_TOOL} fetch_page", context, start_time=moment, attributes={**places, **facts}
        )
        span.end(moment + step)
    root.end(start + spans * step)


def hostile(telemetry: Telemetry) -> None:
    """Write one run whose names, errors and contents are all hostile, one of them 10 MB long."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    run: dict[str, Any] = {semconv.RUN_ID: "6" * 32, semconv.AGENT_NAME: HOSTILE, semconv.ERROR_TYPE: HOSTILE}
    places: dict[str, Any] = {**run, semconv.ITERATION: 1}
    parts = [{"type": "text", "content": text} for text in (HOSTILE, HOSTILE_MARKDOWN)]
    parts += [{"type": "blob", "mime_type": "image/svg+xml", "modality": "image", "content": "PHN2Zy8+"}]
    parts += [{"type": "uri", "modality": "image", "uri": uri} for uri in ("javascript:alert(1)", "https://[x")]
    messages = json.dumps([{"role": HOSTILE, "parts": [*parts, {HOSTILE: HOSTILE}]}])
    root = tracer.start_span(f"{semconv.INVOKE_AGENT} {HOSTILE}", attributes={**run, semconv.PHASE: semconv.RUN})
    context = trace.set_span_in_context(root)
    for phase, attributes in (
        (semconv.DISCOVERY, {semconv.PROVIDER_ID: HOSTILE, semconv.OUTPUT: json.dumps([{"name": HOSTILE}])}),
        (semconv.INFERENCE, {semconv.REQUEST_MODEL: HOSTILE, semconv.INPUT_MESSAGES: messages, HOSTILE: HOSTILE}),
        (semconv.DISPATCH, {semconv.TOOL_NAME: HOSTILE, semconv.TOOL_CALL_RESULT: HOSTILE * 100_000}),
    ):
        facts: dict[str, Any] = {**places, semconv.PHASE: phase, **attributes}
        span = tracer.start_span(f"{phase} {HOSTILE}", context, attributes=facts)
        span.record_exception(RuntimeError(HOSTILE))
        span.set_status(trace.StatusCode.ERROR, HOSTILE)
        span.end()
    root.set_status(trace.StatusCode.ERROR, HOSTILE)
    root.end()


async def hang(telemetry: Telemetry, hub: FakeHub) -> None:
    """Run an agent whose hub hangs, until it is cancelled."""
    provider = DiscoveryProvider(hub, id="search", objective=0.02, timeout=None)
    agent = Agent("triage", model=ScriptedModel("never"), providers=[provider], telemetry=telemetry)
    with anyio.CancelScope():
        await agent.run("What is new?")


@tool
def fetch_page(number: int) -> str:
    """Fetch a page of the catalogue."""
    return f"## Page {number}\n\n| article | price |\n|---|---|\n" + f"| *jumper* {number} | 59.90 |\n" * 8


async def crawl(telemetry: Telemetry, iterations: int = 264, calls: int = 16) -> str:
    """Run an agent that calls 16 tools in all iterations but the last: 5,001 spans; return the id of the run."""
    numbers = iter(range(iterations * calls))
    turns = [
        answer(
            f"### Part {turn}\n\n- **fetch** the next pages\n- compare `prices`\n\n" + "It takes a while. " * 60,
            *(ToolCall("fetch_page", {"number": next(numbers)}) for _ in range(calls)),
            tokens=1_000 * turn,
        )
        for turn in range(1, iterations)
    ]
    model = ScriptedModel(*turns, answer("All pages are **compared**.", tokens=100_000), name="gpt-6-luna")
    agent = Agent(
        "crawler",
        model=model,
        providers=[DiscoveryProvider(FakeHub([fetch_page]), id="catalogue", ttl=600)],
        limits=Limits(max_iterations=iterations + 1, max_tool_calls=iterations * calls),
        telemetry=telemetry,
    )
    return (await agent.run("Compare the prices of all pages.\n\nTake your time.")).run_id
