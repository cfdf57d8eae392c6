from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import BaseModel

from pellucid import (
    Agent,
    CapturePolicy,
    ConfigError,
    DiscoveryProvider,
    FallbackModel,
    Limits,
    ModelError,
    RunResult,
    Tool,
    ToolCall,
    semconv,
    tool,
)
from pellucid.reliability import Reliability, Rule, retry
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools import ToolAnnotations
from pellucid.tools.lock import ToolLock
from pellucid_exporters import File, StoreReader
from pellucid_replay import ReplayDiverged, Tape, TapeError, parts_of, replay
from pellucid_replay.passes import passes_of
from pellucid_replay.rebuilding import rebuilt_setup
from support.local_store import storing
from support.processes import PATIENCE
from support.runs import within
from support.tapes import recording, tapes_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

CITY = ToolCall("weather", {"city": "Bergen"}, "call_1")


class Calls(list[Any]):
    """Names of what was called outside of a run."""


def weather_agent(calls: Calls, model: Any = None, answer: str = "rain", **options: Any) -> Agent:
    """Return an agent with a tool of a hub, which notes what it calls."""

    async def weather(arguments: dict[str, Any], ctx: object) -> str:
        calls.append("weather")
        return answer

    class Hub(FakeHub):
        async def fetch_catalog(self, ctx: Any) -> Any:
            calls.append("hub")
            return await super().fetch_catalog(ctx)

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    hub = DiscoveryProvider(
        Hub([Tool(name="weather", description="Weather of a city.", input_schema=schema, run=weather)]), id="hub"
    )
    model = model or ScriptedModel(CITY, "Take an umbrella.")
    return Agent("guide", model=model, providers=[hub], instructions="Be brief.", **options)


async def tape_of(agent: Agent, question: str = "What to wear in Bergen?", **options: Any) -> Tape:
    """Run an agent and return the tape of the run."""
    with recording(**options) as (telemetry, listings), suppress(ModelError):
        await agent.run(question)
    [tape] = tapes_of(telemetry, listings)
    return tape


async def test_own_tools_with_hidden_characters_are_the_same_tools() -> None:
    """Own tools with hidden characters are the same tools in a replay, as it compares what the model got."""

    def agent() -> Agent:
        hidden = Tool(name="read", description="Read.\u200b", run=lambda arguments, ctx: "text")
        return Agent("reader", model=ScriptedModel(ToolCall("read", {}), "done"), tools=[hidden])

    tape = await tape_of(agent())
    outcome = (await replay(agent(), tape)).check()
    assert isinstance(outcome.result, RunResult)
    assert outcome.result.output == "done"


async def test_a_replay_has_what_tools_say_of_themselves(tmp_path: Path) -> None:
    """A recording has the annotations of tools, and an agent with a lock file is replayed from it."""
    lock = tmp_path / "pellucid.lock"

    async def run(arguments: dict[str, Any], ctx: object) -> str:
        return "rain"

    said = ToolAnnotations(title="Weather", read_only_hint=True)
    weather, other = (Tool(name=name, run=run, annotations=said) for name in ("weather", "other"))
    ToolLock.of({"hub": [weather]}).write(lock)
    hub = DiscoveryProvider(FakeHub([weather, other]), id="hub")

    def agent(*steps: Any) -> Agent:
        return Agent("guide", model=ScriptedModel(*steps), providers=[hub], lock=lock)

    tape = await tape_of(agent(CITY, "Take an umbrella."))
    [catalog] = tape.catalogs.values()
    assert [(item["name"], item["annotations"]) for item in catalog["tools"]] == [("weather", said.to_dict())]
    (await replay(agent(), tape)).check()


async def test_nothing_calls_out(telemetry: Captured) -> None:
    """A replay has the same result; neither hub nor tool nor model is called. It is marked, linked and not measured."""
    tape = await tape_of(weather_agent(Calls()))
    calls = Calls()
    outcome = (await replay(weather_agent(calls, model=ScriptedModel()), tape)).check()
    assert calls == []
    assert isinstance(outcome.result, RunResult)
    assert outcome.result.output == "Take an umbrella."
    assert {(span.attributes or {})[semconv.REPLAY_OF] for span in telemetry.spans} == {tape.run_id}
    [link] = telemetry.span("invoke_agent").links
    assert f"{link.context.span_id:016x}" == tape.spans[0].span_id
    assert not telemetry.metrics


async def test_the_agent_stays_as_it_was() -> None:
    """A run of an agent that has replayed another one records the agent's own configuration."""
    agent = weather_agent(Calls(), model=ScriptedModel(CITY, "Take an umbrella."))
    (await replay(agent, await tape_of(weather_agent(Calls())))).check()
    tape = await tape_of(agent)
    assert json.loads(tape.spans[0].attributes[semconv.AGENT_CONFIGURATION])["limits"] == {}


async def test_a_tape_is_loaded_from_store_file_and_tape(tmp_path: Path) -> None:
    """The local store, a file of the file exporter and a saved tape give the same tape, with a prefix of the id too."""
    store, file, saved = tmp_path / "runs.db", tmp_path / "runs.jsonl", tmp_path / "tapes" / "run.jsonl"
    with storing(store, file=File(file)) as telemetry:
        result = await weather_agent(Calls(), telemetry=telemetry).run("What to wear?")
    tape = Tape.load(store, result.run_id[:8])
    tape.save(saved)
    assert Tape.load(saved) == tape == Tape.load(StoreReader(store), result.run_id)
    assert {span.name for span in Tape.load(file, result.run_id).spans} == {span.name for span in tape.spans}
    for source in (store, file, saved):
        (await replay(None, Tape.load(source, result.run_id))).check()
    with pytest.raises(TapeError, match="there is no run 'abc' in this recording"):
        Tape.load(store, "abc")
    assert Tape.load(store) == tape  # its only run
    with storing(store) as telemetry:
        await weather_agent(Calls(), telemetry=telemetry).run("And tomorrow?")
    with pytest.raises(TapeError, match="has 2 runs; name one"):
        Tape.load(store)


async def test_a_replay_leaves_the_recorded_catalogue_as_it_is(tmp_path: Path) -> None:
    """A replay is recorded in the same store; then a live model still calls tools that need no approval."""
    store = tmp_path / "runs.db"
    with storing(store) as telemetry:
        agent = weather_agent(Calls(), telemetry=telemetry)
        result = await agent.run("What to wear?")
        assert telemetry.flush()
        before = Tape.load(store, result.run_id).catalogs
        (await replay(agent, Tape.load(store, result.run_id))).check()
        assert telemetry.flush()
    tape = Tape.load(store, result.run_id)
    assert tape.catalogs == before
    again = await replay(weather_agent(Calls()), tape, live="model")
    assert again.result is not None
    assert again.result.status == "completed"


async def test_the_first_boundary_that_differs_is_named(telemetry: Captured) -> None:
    """A changed agent stops at the first model call whose request differs, with both sides; its tool is not called."""

    def changed(calls: Calls) -> Agent:
        extra = tool(name="umbrella", description="Buy one.")(lambda: "bought")
        return weather_agent(calls, tools=[extra])

    tape = await tape_of(weather_agent(Calls()))
    outcome = await replay(changed(Calls()), tape)
    assert outcome.divergence is not None
    assert (outcome.divergence.boundary, outcome.divergence.what) == ("discover_tools static", "discoveries")
    with pytest.raises(ReplayDiverged, match="discover_tools static, iteration 1: discoveries differ"):
        outcome.check()


async def test_a_replay_continues_live_where_it_differs() -> None:
    """A replay with `on_divergence="live"` goes on with the real model and the real tool where it differs."""
    tape = await tape_of(weather_agent(Calls()))
    calls = Calls()
    live = ScriptedModel(ToolCall("weather", {"city": "Oslo"}, "call_9"), "Sunglasses.")
    outcome = await replay(weather_agent(calls, live), tape, live={"model"}, on_divergence="live")
    assert outcome.result is not None
    assert outcome.result.output == "Sunglasses."
    assert calls == ["hub", "weather"]
    stopped = await replay(
        weather_agent(Calls(), ScriptedModel(ToolCall("weather", {"city": "Oslo"}, "call_9"))), tape, live={"model"}
    )
    assert stopped.divergence is not None
    assert str(stopped.divergence) == (
        'execute_tool weather, iteration 1: arguments differ: recorded {"city": "Bergen"}, replayed {"city": "Oslo"}'
    )


async def test_calls_of_a_live_model_are_those_of_the_tape() -> None:
    """A replay with a live model has calls in the background and approvals under other call ids."""

    async def run(arguments: dict[str, Any], ctx: object) -> str:
        return "done"

    tools = [
        Tool(name="job", run=run, execution="same-invocation"),
        Tool(name="pays", run=run, needs_approval=True),
    ]

    def agent(call_id: str) -> Agent:
        return Agent("clerk", model=ScriptedModel(ToolCall("job", {}, call_id), "waiting", "over"), tools=tools)

    tape = await tape_of(agent("a"))
    outcome = await within(replay(agent("b"), tape, live={"model"}))
    assert outcome.divergence is None
    assert outcome.result is not None
    assert outcome.result.output == "over"
    asks = Agent("clerk", model=ScriptedModel(ToolCall("pays", {}, "d1")), tools=tools)
    tape = await tape_of(asks)
    waits = await within(replay(asks, tape, model=ScriptedModel(ToolCall("pays", {}, "e1"))))
    assert waits.result is not None
    assert waits.result.status == "awaiting_approval"


@pytest.mark.parametrize(("live", "expected"), [("tool:weather", ["hub", "weather"]), ("hub:hub", ["hub", "weather"])])
async def test_parts_of_a_replay_are_live(live: str, expected: list[str]) -> None:
    """A live tool is called, also if its hub is recorded; a live hub is asked, and its tools are called."""
    tape = await tape_of(weather_agent(Calls()))
    calls = Calls()
    outcome = await replay(weather_agent(calls), tape, live={live})
    assert calls == expected
    assert outcome.result is not None


async def test_options_that_cannot_work() -> None:
    """An unknown part, a live part without an agent, and unknown values are refused with those that there are."""
    tape = await tape_of(weather_agent(Calls()))
    with pytest.raises(ConfigError, match="use some of hub:hub, model, tool:weather"):
        await replay(weather_agent(Calls()), tape, live={"tool:wether"})
    with pytest.raises(ConfigError, match="pass the agent"):
        await replay(None, tape, live={"model"})
    for wrong in ({"timing": float("nan")}, {"timing": -1}, {"timing": "1"}, {"on_divergence": "go"}):
        with pytest.raises(ConfigError, match="must be"):
            await replay(None, tape, **wrong)


async def test_a_recording_without_content_is_refused() -> None:
    """Recordings with metadata only, and with content that was cut, are refused with what they lack."""
    with pytest.raises(
        TapeError, match=r"was recorded without content.*; record runs with CapturePolicy\('redacted'\)"
    ):
        await replay(None, await tape_of(weather_agent(Calls()), capture=CapturePolicy("metadata")))
    small = CapturePolicy(max_bytes=1000, max_span_bytes=2000)
    with pytest.raises(TapeError, match=r"execute_tool weather.* has only a part of gen_ai.tool.call.result"):
        await replay(None, await tape_of(weather_agent(Calls(), answer="rain " * 1000), capture=small))
    tape = await tape_of(weather_agent(Calls()))
    with pytest.raises(TapeError, match=r"discover_tools hub.* which the recording does not have"):
        await replay(None, Tape(tape.run_id, tape.spans, {}))


class Advice(BaseModel):
    """Advice on clothes."""

    clothes: list[str]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version":1', '"version":"1"'),
        ('"phase":"discovery"', '"phase":[]'),
        ('"end":', '"ended":'),
        ('"tools":[{', '"tools":[7,{'),
        (r"\"identity\":null", r"\"identity\":7"),
        (r"\"skills\":[]", r"\"abilities\":[]"),
        ('"gen_ai.output.messages":"[', '"gen_ai.output.messages":"[7,'),
        ('"gen_ai.output.messages":"[', '"gen_ai.output.messages":"'),
    ],
)
async def test_a_damaged_tape_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """A file that is not what a replay wrote is an error, not a replay that crashes or waits for ever."""
    file = tmp_path / "run.jsonl"
    (await tape_of(weather_agent(Calls()))).save(file)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(TapeError), anyio.fail_after(PATIENCE):
        await replay(None, Tape.load(file))


async def test_an_agent_is_rebuilt_from_its_recording() -> None:
    """An agent is rebuilt from its recording, with its settings, limits and output type."""
    answer = json.dumps({"clothes": ["hat"]})
    agent = weather_agent(
        Calls(), ScriptedModel(CITY, "no idea", answer), output=Advice, settings={"temperature": 0.5, "max_tokens": 9}
    )
    outcome = (await replay(None, await tape_of(agent))).check()
    assert outcome.result is not None
    assert outcome.result.output == {"clothes": ["hat"]}


async def test_limits_keep_their_names_in_recordings() -> None:
    """`Limits.timeout` is recorded as `deadline`, as ever; an agent is rebuilt from either name, without a warning."""
    tape = await tape_of(weather_agent(Calls(), limits=Limits(timeout=60.0, max_iterations=5)))
    recorded = str(tape.spans[0].attributes[semconv.AGENT_CONFIGURATION])
    assert json.loads(recorded)["limits"] == {"deadline": 60.0, "max_iterations": 5}
    assert rebuilt_setup(passes_of(tape)).limits == Limits(timeout=60.0, max_iterations=5)
    (await replay(None, tape)).check()
    attributes: Any = tape.spans[0].attributes
    attributes[semconv.AGENT_CONFIGURATION] = recorded.replace("deadline", "timeout")
    assert rebuilt_setup(passes_of(tape)).limits == Limits(timeout=60.0, max_iterations=5)


async def test_code_cannot_be_rebuilt() -> None:
    """A recording of an agent with a permission policy cannot be replayed without the agent."""
    agent = weather_agent(Calls(), policy=lambda request: "allow")
    tape = await tape_of(agent)
    with pytest.raises(TapeError, match="had a permission policy, which is code; pass the agent"):
        await replay(None, tape)
    (await replay(agent, tape)).check()


async def test_failed_attempts_are_replayed() -> None:
    """Retries and fallbacks between models are replayed, without their waiting times."""
    away = ModelError("first", "away", error_kind="unavailable")
    fallback = FallbackModel(
        ScriptedModel(away, away, name="first"), ScriptedModel(CITY, "Take an umbrella.", name="second")
    )
    tape = await tape_of(weather_agent(Calls(), fallback))
    for agent in (weather_agent(Calls(), fallback), None):
        (await within(replay(agent, tape))).check()

    async def no_sleep(seconds: float) -> None:
        pass

    rules = [Rule(when=lambda s: s.error_kind == "unavailable" and s.attempt < 3, then=retry(), kind="again")]
    model = ScriptedModel(away, CITY, "Take an umbrella.", name="first")
    tape = await tape_of(weather_agent(Calls(), model, reliability=Reliability(rules, sleep=no_sleep)))
    (await within(replay(weather_agent(Calls(), reliability=Reliability(rules), model=model), tape))).check()


async def test_the_parts_of_a_tape_are_ordinary_ones(telemetry: Captured) -> None:
    """An agent runs on the model and the providers of a tape, is measured, and fails where it differs."""
    tape = await tape_of(weather_agent(Calls()))
    model, providers = parts_of(tape)
    result = await Agent("mine", model=model, providers=providers, instructions="Be brief.").run(
        "What to wear in Bergen?"
    )
    assert result.output == "Take an umbrella."
    assert semconv.REPLAY_OF not in (telemetry.span("invoke_agent").attributes or {})
    model, providers = parts_of(tape)
    with pytest.raises(ModelError) as failed:
        await Agent("mine", model=model, providers=providers, instructions="Be brief.").run("And in Oslo?")
    assert isinstance(failed.value.__cause__, ReplayDiverged)
    assert failed.value.__cause__.divergence.what == "messages"


async def test_a_failed_run_fails_again() -> None:
    """The error of the recorded run is the error of the replay."""
    tape = await tape_of(weather_agent(Calls(), ScriptedModel(CITY, ConnectionError("the model is away"))))
    outcome = (await replay(None, tape)).check()
    assert outcome.result is None
    assert str(outcome.error) == "call of model 'scripted' failed: ConnectionError: the model is away"


async def test_a_streamed_answer_arrives_in_its_pieces(telemetry: Captured) -> None:
    """Pieces of a streamed answer have the recorded texts, kinds and order."""
    agent = weather_agent(Calls())
    with recording() as (recorded, listings):
        async with agent.stream("What to wear?") as events:
            async for _ in events:
                pass
    [tape] = tapes_of(recorded, listings)
    (await replay(None, tape)).check()
    assert _pieces(telemetry) == _pieces(recorded)
    assert len(_pieces(recorded)) > 3


def _pieces(telemetry: Captured) -> Sequence[tuple[Any, ...]]:
    deltas: list[Any] = [event for event in telemetry.events if event.name == "inference.delta"]
    return [(event.type, event.content) for event in deltas]


def test_recorded_timing_is_kept() -> None:
    """A replay takes as long as the recorded run with `timing=1`, and no time with `timing=0`."""
    from trio.testing import MockClock

    async def waits(arguments: dict[str, Any], ctx: object) -> str:
        await anyio.sleep(2)
        return "done"

    async def slow(request: object) -> Any:
        await anyio.sleep(1)
        return "Done."

    async def call(request: object) -> Any:
        await anyio.sleep(1)
        return [ToolCall("waits", {}, "a"), ToolCall("waits", {}, "b")]

    async def play() -> tuple[float, float]:
        agent = Agent("slow", model=ScriptedModel(call, slow), tools=[Tool(name="waits", run=waits)])
        tape = await tape_of(agent, clock=lambda: round(anyio.current_time() * 1e9))
        durations = []
        for timing in (0, 1):
            start = anyio.current_time()
            (await replay(None, tape, timing=timing)).check()
            durations.append(anyio.current_time() - start)
        return durations[0], durations[1]

    instant, recorded = anyio.run(play, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert instant == 0
    assert recorded == pytest.approx(4, rel=0.1)


async def test_a_stopped_run_is_replayed_up_to_there() -> None:
    """A recording that ends in a tool call, because its process did, is replayed up to that call."""
    tape = await tape_of(weather_agent(Calls()))
    end = next(index for index, span in enumerate(tape.spans) if span.phase == "dispatch")
    spans = [*tape.spans[:end], replace(tape.spans[end], end=None, outcome="interrupted")]
    spans[0] = replace(spans[0], end=None, outcome="interrupted")
    outcome = (await replay(None, Tape(tape.run_id, spans, tape.catalogs))).check()
    assert outcome.is_stopped
    assert outcome.tool_calls == ["weather"]
    assert outcome.result is None


async def test_results_of_a_tape_are_not_checked_again() -> None:
    """Results of a tape are not checked again; a misfit that was recorded is one again."""
    schema = {"type": "object", "properties": {"days": {"type": "array"}}}

    def agent(*days: Any) -> Agent:
        answers = iter(days)

        async def run(arguments: Any, ctx: object) -> Any:
            return {"days": next(answers)}

        made = Tool(name="weather", run=run, output_schema=schema)
        model = ScriptedModel(ToolCall("weather", {}, "c1"), ToolCall("weather", {}, "c2"), "done")
        return Agent("a", model=model, tools=[made], limits=Limits(max_result_bytes=200))

    tape = await tape_of(agent(["x" * 1000], 1))
    outcome = (await within(replay(agent(), tape))).check()
    assert isinstance(outcome.result, RunResult)
    cut, misfit = (part for message in outcome.result.messages for part in message.tool_results)
    assert "[cut: " in str(cut.response)
    assert (misfit.is_error, cut.is_error) == (True, False)
    assert "days: the value is not of type" in str(misfit.response)
