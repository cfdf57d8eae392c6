"""The same telemetry as Pellucid's, written plainly by hand with the OpenTelemetry SDK: the yardstick."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider, format_span_id, format_trace_id

from pellucid import Message, ModelRequest, semconv

Model = Any
ToolFunction = Callable[[Any, Any], Awaitable[str]]


class ByHand:
    """A loop with four spans and four histogram records an iteration, and the attributes that Pellucid's have.

    With `content` it records messages, arguments, results and the offered tools too: `json.dumps` of the history for
    every request, as such code does, or only of what is new in it, and of the tools once. With `logs` it writes a line
    of structlog for each span.
    """

    def __init__(
        self,
        tracers: TracerProvider,
        meters: MeterProvider,
        model: Model,
        tools: list[Any],
        tool: ToolFunction,
        *,
        content: bool,
        whole_history: bool = True,
        logs: bool = False,
    ) -> None:
        self.tracer: Tracer = tracers.get_tracer("by-hand")
        meter = meters.get_meter("by-hand")
        self.histograms: dict[str, Histogram] = {
            metric.name: meter.create_histogram(
                metric.name, unit="s", explicit_bucket_boundaries_advisory=list(metric.buckets)
            )
            for metric in (
                semconv.DISCOVERY_DURATION,
                semconv.COMPOSE_DURATION,
                semconv.OPERATION_DURATION,
                semconv.TOOL_DURATION,
            )
        }
        self.model = model
        self.tools = tools
        self.tool = tool
        self.content = content
        self.whole_history = whole_history
        self.logs = logs
        self.listed = json.dumps([{"name": tool.name, "description": tool.description} for tool in tools])
        self.defined = json.dumps([tool.definition.to_dict() for tool in tools])[: 32 * 1024]

    async def run(self) -> None:
        """Run until the model is done."""
        messages = [Message("user", "go")]
        with self.tracer.start_as_current_span(
            "invoke_agent bench", attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bench"}
        ):
            iteration = 0
            while True:
                iteration += 1
                common = {
                    "pellucid.run.id": "0123456789abcdef",
                    "pellucid.iteration": iteration,
                    "pellucid.outcome": "completed",
                }
                self.discover(common)
                request = self.compose(common, messages)
                response = await self.chat(common, request)
                messages.append(response.message)
                if not response.message.tool_calls:
                    return
                for call in response.message.tool_calls:
                    messages.append(await self.execute(common, call))  # noqa: PERF401  (awaits)

    def discover(self, common: dict[str, Any]) -> None:
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            "discover_tools static",
            attributes={
                **common,
                "pellucid.phase": "discovery",
                "pellucid.provider.id": "static",
                "pellucid.provider.kind": "static",
                "pellucid.discovery.cache": "none",
            },
        ) as span:
            span.set_attributes(
                {
                    "pellucid.discovery.tool_count": len(self.tools),
                    "pellucid.catalog.digest": "0123456789abcdef0123456789abcdef",
                    "pellucid.catalog.changed": False,
                }
            )
            if self.content:
                span.set_attributes(
                    _content("pellucid.boundary.input", json.dumps({"iteration": common["pellucid.iteration"]}))
                )
                span.set_attributes(_content("pellucid.boundary.output", self.listed[: 32 * 1024]))
            labels = {
                "pellucid.provider.id": "static",
                "pellucid.provider.kind": "static",
                "pellucid.discovery.cache": "none",
            }
            self.histograms[semconv.DISCOVERY_DURATION.name].record(time.perf_counter() - began, labels)
            self.log("tools.discovery_completed", span, common, began, provider_id="static", cache="none")

    def compose(self, common: dict[str, Any], messages: list[Message]) -> ModelRequest:
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            "compose_request", attributes={**common, "pellucid.phase": "compose", "gen_ai.agent.name": "bench"}
        ) as span:
            request = ModelRequest(messages=tuple(messages))
            span.set_attributes(
                {
                    "pellucid.compose.tools": len(self.tools),
                    "pellucid.compose.messages": len(messages),
                    "pellucid.request.digest": "0123456789abcdef0123456789abcdef",
                    "pellucid.catalog.digest": "0123456789abcdef0123456789abcdef",
                }
            )
            if self.content:
                span.set_attributes(_content("pellucid.boundary.input", json.dumps({"messages": len(messages)})))
                span.set_attributes(_content("pellucid.boundary.output", json.dumps({"messages": len(messages)})))
            self.histograms[semconv.COMPOSE_DURATION.name].record(
                time.perf_counter() - began, {"gen_ai.agent.name": "bench"}
            )
            self.log("request.composed", span, common, began, tool_count=10, message_count=len(messages))
        return request

    async def chat(self, common: dict[str, Any], request: ModelRequest) -> Any:
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            "chat scripted",
            kind=SpanKind.CLIENT,
            attributes={
                **common,
                "pellucid.phase": "inference",
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "bench",
                "gen_ai.request.model": "scripted",
                "pellucid.attempt": 1,
                "pellucid.catalog.digest": "0123456789abcdef0123456789abcdef",
            },
        ) as span:
            response = await self.model.generate(request)
            span.set_attributes(
                {
                    "gen_ai.response.finish_reasons": (response.finish_reason,),
                    "gen_ai.usage.input_tokens": response.usage.input_tokens,
                    "gen_ai.usage.output_tokens": response.usage.output_tokens,
                }
            )
            if self.content:
                recorded = request.messages if self.whole_history else request.messages[-2:]
                history = json.dumps([message.to_dict() for message in recorded])
                span.set_attributes(_content("pellucid.boundary.input", history, "gen_ai.input.messages"))
                answer = json.dumps([response.message.to_dict()])
                span.set_attributes(_content("pellucid.boundary.output", answer, "gen_ai.output.messages"))
                if common["pellucid.iteration"] == 1:
                    span.set_attribute("gen_ai.tool.definitions", self.defined)
            labels = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "bench",
                "gen_ai.request.model": "scripted",
            }
            self.histograms[semconv.OPERATION_DURATION.name].record(time.perf_counter() - began, labels)
            self.log("inference.completed", span, common, began, model="scripted", finish_reason="stop")
        return response

    async def execute(self, common: dict[str, Any], call: Any) -> Message:
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            f"execute_tool {call.name}",
            attributes={
                **common,
                "pellucid.phase": "dispatch",
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.agent.name": "bench",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.description": "Do the thing, carefully.",
                "pellucid.provider.id": "static",
                "pellucid.dispatch.mode": "inline",
            },
        ) as span:
            value = await self.tool(call.arguments, None)
            if self.content:
                span.set_attributes(
                    _content("pellucid.boundary.input", json.dumps(call.arguments), "gen_ai.tool.call.arguments")
                )
                span.set_attributes(_content("pellucid.boundary.output", json.dumps(value), "gen_ai.tool.call.result"))
            labels = {
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.type": "function",
                "gen_ai.agent.name": "bench",
                "pellucid.provider.id": "static",
            }
            self.histograms[semconv.TOOL_DURATION.name].record(time.perf_counter() - began, labels)
            self.log("tool.completed", span, common, began, tool_name=call.name, tool_call_id=call.id)
        return Message("tool", value)

    def log(self, event: str, span: Span, common: dict[str, Any], began: float, **fields: Any) -> None:
        if not self.logs:
            return
        context = span.get_span_context()
        structlog.get_logger("by-hand").info(
            event,
            agent="bench",
            run_id="0123456789abcdef",
            iteration=common["pellucid.iteration"],
            trace_id=format_trace_id(context.trace_id),
            span_id=format_span_id(context.span_id),
            **fields,
            outcome="completed",
            duration_ms=(time.perf_counter() - began) * 1e3,
        )


def _content(name: str, text: str, attribute: str | None = None) -> dict[str, Any]:
    return {
        attribute or name: text,
        f"{name}.digest": "0123456789abcdef0123456789abcdef",
        f"{name}.bytes": len(text),
    }
