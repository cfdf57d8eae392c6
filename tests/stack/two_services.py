"""Two services whose agents work on the same traces: `front` asks `expert`, which another process would run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pellucid import Agent, DiscoveryProvider, Message, ModelError, ModelResponse, ToolCall, Usage, tool
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters import configure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pellucid import ModelRequest
    from pellucid_exporters.telemetry import Telemetry

PLAIN, FAILING, SLOW_HUB = "plain", "failing", "slow-hub"

FRONT, EXPERT = "front", "expert"


class TwoServices:
    """Services that send to one endpoint, each by a pipeline of its own.

    Attributes:
        front: Telemetry of the service that gets requests.
        expert: Telemetry of the service that it asks. Whatever fails or is slow is there.
    """

    def __init__(self, endpoint: str) -> None:
        self.front, self.expert = (configure(name, otlp=endpoint, set_global=False) for name in (FRONT, EXPERT))
        self._tracer = self.front.tracer_provider.get_tracer("requests")

    async def requests(self, kinds: Iterable[str]) -> dict[str, str]:
        """Answer a request of each kind, one after the other; return the kinds by trace id."""
        return {await self._request(kind): kind for kind in kinds}

    def delivered(self) -> bool:
        """Send what is queued; return whether all of it was accepted."""
        return all(telemetry.flush(30.0) for telemetry in self._both)

    def shutdown(self) -> None:
        """Send what is queued, and end."""
        for telemetry in self._both:
            telemetry.shutdown(30.0)

    @property
    def _both(self) -> tuple[Telemetry, Telemetry]:
        return self.front, self.expert

    async def _request(self, kind: str) -> str:
        expert = _expert(kind, self.expert)

        @tool
        async def consult() -> str:
            """Ask the expert, and do without if it fails."""
            with suppress(ModelError):
                return (await expert.run("What do you know?")).output
            return "Nothing."

        front = Agent(FRONT, model=FunctionModel(_ask_once), tools=[consult], telemetry=self.front)
        with self._tracer.start_as_current_span("request") as span:
            await front.run("Help.")
        return format(span.get_span_context().trace_id, "032x")


def _expert(kind: str, telemetry: Telemetry) -> Agent:
    model = FunctionModel(_fail if kind == FAILING else _know)
    slow = DiscoveryProvider(FakeHub(latency=0.1), id="slow", objective=0.001)
    return Agent(EXPERT, model=model, providers=[slow] if kind == SLOW_HUB else [], telemetry=telemetry)


def _ask_once(request: ModelRequest) -> str | ToolCall:
    return ToolCall("consult") if len(request.messages) == 1 else "Done."


def _know(_: ModelRequest) -> ModelResponse:
    return ModelResponse(message=Message("assistant", "All of it."), usage=Usage(input_tokens=100, output_tokens=10))


def _fail(_: ModelRequest) -> str:
    raise RuntimeError("the model is down")
