"""A loop with the least telemetry that shows what happened: few attributes, new content as it is, no masking."""

from __future__ import annotations

import json
import time
from typing import Any

from opentelemetry.trace import SpanKind

from bench.by_hand import ByHand
from pellucid import Message, ModelRequest, semconv


class LightlyByHand(ByHand):
    """The spans and histograms of `ByHand` with two or three attributes each; content is new messages only."""

    def discover(self, common: dict[str, Any]) -> None:
        """List the tools."""
        began = time.perf_counter()
        with self.tracer.start_as_current_span("discover_tools static", attributes={"pellucid.provider.id": "static"}):
            self.histograms[semconv.DISCOVERY_DURATION.name].record(time.perf_counter() - began)

    def compose(self, common: dict[str, Any], messages: list[Message]) -> ModelRequest:
        """Make the request."""
        began = time.perf_counter()
        with self.tracer.start_as_current_span("compose_request"):
            request = ModelRequest(messages=tuple(messages))
            self.histograms[semconv.COMPOSE_DURATION.name].record(time.perf_counter() - began)
        return request

    async def chat(self, common: dict[str, Any], request: ModelRequest) -> Any:
        """Call the model."""
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            "chat scripted", kind=SpanKind.CLIENT, attributes={"gen_ai.request.model": "scripted"}
        ) as span:
            response = await self.model.generate(request)
            history = json.dumps([message.to_dict() for message in request.messages[-2:]])
            answer = json.dumps([response.message.to_dict()])
            span.set_attributes({"gen_ai.input.messages": history, "gen_ai.output.messages": answer})
            labels = {"gen_ai.request.model": "scripted"}
            self.histograms[semconv.OPERATION_DURATION.name].record(time.perf_counter() - began, labels)
        return response

    async def execute(self, common: dict[str, Any], call: Any) -> Message:
        """Call a tool."""
        began = time.perf_counter()
        with self.tracer.start_as_current_span(
            f"execute_tool {call.name}",
            attributes={"gen_ai.tool.name": call.name, "gen_ai.tool.call.arguments": json.dumps(call.arguments)},
        ) as span:
            value = await self.tool(call.arguments, None)
            span.set_attribute("gen_ai.tool.call.result", json.dumps(value))
            labels = {"gen_ai.tool.name": call.name}
            self.histograms[semconv.TOOL_DURATION.name].record(time.perf_counter() - began, labels)
        return Message("tool", value)
