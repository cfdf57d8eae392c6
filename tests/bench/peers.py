"""Processor time of one iteration with telemetry, beside Microsoft's Agent Framework with its own.

Run it with `python -m bench.peers` in `tests`, with `agent-framework-core` installed, which nothing else here needs.
Both do the work of `bench.iteration`, and send OTLP over HTTP to a process of its own. Agent Framework records no
content unless it is told to, and neither discovery nor the composing of a request.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from typing import Any

import anyio
from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider

from bench import iteration
from bench.iteration import ITERATIONS, Variant, measure, variants
from bench.sink import sink

try:
    import agent_framework
    from agent_framework.observability import ChatTelemetryLayer, configure_otel_providers, enable_instrumentation
except ImportError:
    sys.exit("bench.peers: agent-framework-core is not installed; `pip install agent-framework-core`")


def respond(_client: Any, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
    """Answer as the scripted model of `bench.iteration` does."""

    async def answer() -> Any:
        number = len(messages)
        usage = {"input_token_count": 100 + number, "output_token_count": 10}
        if number >= 2 * ITERATIONS:
            contents: list[Any] = [agent_framework.Content.from_text("done")]
        else:
            call = agent_framework.Content.from_function_call(f"call_{number}", "tool_1", arguments={"a": f"x{number}"})
            contents = [call]
        message = agent_framework.Message(role="assistant", contents=contents)
        return agent_framework.ChatResponse(messages=[message], usage_details=usage, model="scripted")

    return answer()


LAYERS = (
    agent_framework.FunctionInvocationLayer,
    agent_framework.ChatMiddlewareLayer,
    ChatTelemetryLayer,
    agent_framework.BaseChatClient,
)
Answering: Any = type("Answering", LAYERS, {"OTEL_PROVIDER_NAME": "bench", "_inner_get_response": respond})


def tools() -> list[Any]:
    """Return the ten tools of `bench.iteration`."""

    async def noop(**_: Any) -> str:
        return "ok"

    return [
        agent_framework.FunctionTool(
            name=tool.name, description=tool.description, func=noop, input_model=dict(tool.input_schema)
        )
        for tool in iteration.catalogue(10)
    ]


def peer(endpoint: str) -> dict[str, Variant]:
    """Return runs of Agent Framework."""
    configure_otel_providers(otlp_endpoint=endpoint, otlp_protocol="http/protobuf")
    client = Answering()
    client.function_invocation_configuration["max_iterations"] = ITERATIONS + 1
    agent = agent_framework.Agent(client, name="bench", tools=tools())

    def flush() -> None:
        for provider in providers():
            provider.force_flush()

    def run(*, content: bool) -> Variant:
        async def once() -> None:
            enable_instrumentation(enable_sensitive_data=content)
            response = await agent.run("go")
            assert response.text == "done"

        return Variant(once, flush)

    return {"agent-framework": run(content=False), "agent-framework, with content": run(content=True)}


def providers() -> list[Any]:
    """Return the providers that it has made."""
    return [trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    with sink() as endpoint, variants(endpoint) as every:
        ours = ("configure(otlp=...), 10 tools", "without logs, 10 tools", "without logs, capture=off, 10 tools")
        compared = {name: every[name] for name in ("by hand, with content", *ours)} | peer(endpoint)
        found = anyio.run(measure, options.samples, compared)
        for provider in providers():
            provider.shutdown()
    print(f"agent-framework-core {version('agent-framework-core')}; processor time of one iteration, µs")
    for name, (loop, everything) in found.items():
        print(f"{name:42} loop's thread {loop:7.0f}   all threads {everything:7.0f}")


if __name__ == "__main__":
    main()
