"""Spans of the GenAI conventions: their names, kinds, attributes and types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelDelta,
    ModelError,
    ModelResponse,
    RunCancelled,
    RunStream,
    RunTimeout,
    TelemetryOptions,
    ToolCall,
    semconv,
)
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support import scene
from support.clock import SOON, pass_time
from support.conventions import ATTRIBUTES, SPANS, TYPES
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

OURS = ("discover_tools", "compose_request")


async def read(stream: RunStream) -> None:
    """Read a stream to its end."""
    async with stream as events:
        async for _ in events:
            pass


async def run(how: str) -> None:
    """Run the agent of which everything is known."""
    agent = scene.agent()
    if how == "run":
        await within(agent.run(scene.HISTORY, identity=scene.WHO))
    else:
        await within(read(agent.stream(scene.HISTORY, identity=scene.WHO)))


def operation(span: ReadableSpan) -> str:
    """Return the first word of a span's name."""
    return span.name.split(" ")[0]


def of_conventions(span: ReadableSpan) -> set[str]:
    """Return the names of a span's attributes that belong to the conventions."""
    return {name for name in attributes(span) if not name.startswith("pellucid.")}


async def test_a_run_that_called_no_model_has_no_finish_reason(telemetry: Captured) -> None:
    """A hub that fails before the first model call leaves `finish_reasons` out; one that fails later does not."""
    hub = DiscoveryProvider(FakeHub(faults=[ConnectionError("gone")]), id="hub", ttl=0)
    with pytest.raises(DiscoveryError):
        await within(Agent("a", model=ScriptedModel("x"), providers=[hub]).run("go"))
    assert semconv.RESPONSE_FINISH_REASONS not in attributes(telemetry.span("invoke_agent"))
    model = ScriptedModel(ToolCall("no", {}), "x")
    later = DiscoveryProvider(FakeHub(faults=[None, ConnectionError("gone")]), id="later", ttl=0)
    with pytest.raises(DiscoveryError):
        await within(Agent("b", model=model, providers=[later], on_stale="fail").run("go"))
    assert attributes(telemetry.span("invoke_agent b"))[semconv.RESPONSE_FINISH_REASONS] == ("error",)


@pytest.mark.parametrize(
    ("of_response", "of_message", "reason"),
    [("stop", "tool_call", "tool_call"), ("length", "stop", "length"), ("stop", None, "stop")],
)
async def test_finish_reasons_agree(telemetry: Captured, of_response: Any, of_message: Any, reason: str) -> None:
    """The span's finish reason is that of its output message, wherever the model said it."""
    message = Message("assistant", "yes", finish_reason=of_message)
    model = FunctionModel(lambda request: ModelResponse(message=message, finish_reason=of_response))
    result = await within(Agent("a", model=model).run("go"))
    chat = attributes(telemetry.span("chat"))
    assert chat[semconv.RESPONSE_FINISH_REASONS] == (reason,)
    assert json.loads(str(chat[semconv.OUTPUT_MESSAGES]))[0]["finish_reason"] == reason
    assert attributes(telemetry.span("invoke_agent"))[semconv.RESPONSE_FINISH_REASONS] == (reason,)
    assert result.stop_reason == reason


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize("name", sorted(SPANS))
async def test_a_span_is_what_the_conventions_say(telemetry: Captured, name: str, how: str) -> None:
    """Its name, kind, and attributes: all that are asked for and known, and no others."""
    await run(how)
    facts = SPANS[name]
    found = [span for span in telemetry.spans if operation(span) == name]
    assert found
    for span in found:
        present = attributes(span)
        pattern, placeholder = facts.name.split(" ")
        assert span.name == f"{pattern} {present[placeholder.strip('{}')]}"
        assert span.kind is facts.kind
        assert present["gen_ai.operation.name"] == name
        assert of_conventions(span) >= facts.required | facts.known
        assert of_conventions(span) <= facts.required | facts.known | facts.allowed


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_each_attribute_has_the_type_of_the_conventions(telemetry: Captured, how: str) -> None:
    """On whichever span it is."""
    await run(how)
    for span in telemetry.spans:
        for name in of_conventions(span):
            value = attributes(span)[name]
            assert type(value) is TYPES[ATTRIBUTES[name]], f"{span.name}: {name}={value!r}"
            if isinstance(value, tuple):
                assert {type(item) for item in value} <= {str}


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_what_the_conventions_do_not_know_has_no_operation(telemetry: Captured, how: str) -> None:
    """Discovery and compose have names of ours, and no `gen_ai.operation.name` that dashboards would count."""
    await run(how)
    found = [span for span in telemetry.spans if operation(span) in OURS]
    assert {operation(span) for span in found} == set(OURS)
    for span in found:
        assert span.kind.name == "INTERNAL"
        assert "gen_ai.operation.name" not in attributes(span)
        assert "gen_ai.provider.name" not in attributes(span)


async def test_streaming_is_shown_only_when_it_is_so(telemetry: Captured) -> None:
    """`gen_ai.request.stream` is true or absent, and so is the time to the first chunk."""
    await run("stream")
    for span in telemetry.find("chat"):
        assert attributes(span)[semconv.REQUEST_STREAM] is True
        assert attributes(span)[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] > 0
    streamed = len(telemetry.find("chat"))
    await run("run")
    for span in telemetry.find("chat")[streamed:]:
        assert not {semconv.REQUEST_STREAM, semconv.RESPONSE_TIME_TO_FIRST_CHUNK} & set(attributes(span))


@pytest.mark.parametrize("identity", [None, Identity(tenant="acme")])
async def test_a_conversation_has_an_id_only_from_its_caller(telemetry: Captured, identity: Identity | None) -> None:
    """None is made up, neither of a run's id nor of a trace's."""
    await within(scene.agent().run("hi", identity=identity))
    assert not [span.name for span in telemetry.spans if semconv.CONVERSATION_ID in attributes(span)]


async def test_what_is_unknown_is_absent(telemetry: Captured) -> None:
    """A model that says nothing of itself leaves no empty attributes: no address, no usage, no id."""
    await within(Agent("a", model=ScriptedModel("hi")).run("hi"))
    unknown = (SPANS["chat"].known | SPANS["chat"].allowed) - of_conventions(telemetry.span("chat"))
    assert {"server.address", "server.port", "gen_ai.usage.input_tokens", "gen_ai.response.id"} <= unknown
    for span in telemetry.spans:
        assert None not in attributes(span).values()
        assert "" not in attributes(span).values()


class Sluggish:
    """A model that says a word and then nothing more, or fails."""

    name = "sluggish"
    provider_name = "test"

    def __init__(self, *, error: Exception | None = None, passes_time: bool = False) -> None:
        self.started = anyio.Event()
        self._error = error
        self._passes_time = passes_time

    async def generate(self, request: object) -> Any:
        """Say nothing."""
        self.started.set()
        if self._error is not None:
            raise self._error
        if self._passes_time:
            pass_time()
        await anyio.sleep_forever()

    async def stream(self, request: object) -> AsyncIterator[Any]:
        """Say a word."""
        yield ModelDelta("text", "Well")
        yield await self.generate(request)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("end", ["failed", "cancelled", "timeout"])
async def test_an_answer_that_did_not_come_to_its_end_finished_with_an_error(
    telemetry: Captured, end: str, streamed: bool
) -> None:
    """`finish_reasons` is `error`, whatever cut the answer short; `error.type` says whether that was a failure."""
    model = Sluggish(error=OSError("gone") if end == "failed" else None, passes_time=end == "timeout")
    limits = Limits(timeout=SOON if end == "timeout" else None)
    token = CancelToken()
    agent = scene.agent(model=model, limits=limits)
    errors = {"failed": ModelError, "cancelled": RunCancelled, "timeout": RunTimeout}

    async def cancel() -> None:
        await model.started.wait()
        if end == "cancelled":
            token.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            with pytest.raises(errors[end]):
                await (read(agent.stream("hi", signal=token)) if streamed else agent.run("hi", signal=token))
    found = attributes(telemetry.span("chat"))
    assert found[semconv.RESPONSE_FINISH_REASONS] == ("error",)
    assert found.get(semconv.ERROR_TYPE) == {"failed": "OSError", "cancelled": None, "timeout": "timeout"}[end]


class Noting(Sampler):
    """A sampler that keeps everything, and what it was given to decide by."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Mapping[str, Any], Any]] = []

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        """Keep it."""
        self.given.append((name, dict(attributes or {}), kind))
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        """Return a name."""
        return "noting"


@pytest.mark.parametrize("name", sorted(SPANS))
async def test_samplers_are_given_what_they_may_decide_by(name: str) -> None:
    """Names, operation, model, address and kind are there when a span starts, not only when it ends."""
    sampler = Noting()
    traced = TelemetryOptions(tracer_provider=TracerProvider(sampler=sampler, shutdown_on_exit=False))
    await within(scene.agent(telemetry=traced).run(scene.HISTORY, identity=scene.WHO))
    given = [(attributes_, kind) for called, attributes_, kind in sampler.given if called.startswith(f"{name} ")]
    assert given
    for attributes_, kind in given:
        assert set(attributes_) >= SPANS[name].for_samplers
        assert kind is SPANS[name].kind
        assert {semconv.RUN_ID, semconv.PHASE} <= set(attributes_)
