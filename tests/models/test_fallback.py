from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    FallbackModel,
    Limits,
    Message,
    ModelDelta,
    ModelError,
    Reliability,
    RunCancelled,
    RunTimeout,
    Tool,
)
from pellucid.events import InferenceDelta
from pellucid.models import ModelRequest, ModelResponse
from pellucid.reliability import Rule, retry_other
from pellucid.testing import FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.runs import attributes, ending, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ErrorKind
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ASKED = ModelRequest(messages=(Message("user", "go"),))


def failing(kind: ErrorKind, name: str = "first") -> ScriptedModel:
    """Return a model that fails each time."""
    return ScriptedModel(*[ModelError(name, "no", error_kind=kind) for _ in range(3)], name=name)


class Broken(ScriptedModel):
    """A model whose streams end in the middle."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Yield a piece, then fail."""
        yield ModelDelta("text", "Once upon")
        raise ModelError(self.name, "the connection broke", error_kind="unavailable")


async def read(agent: Agent) -> None:
    """Stream a run to its end."""
    async with agent.stream("go") as events:
        async for _ in events:
            pass


async def test_each_attempt_is_a_span(telemetry: Captured) -> None:
    """Each attempt is a span with its model and number, and the run completes with the answer of the second model."""
    second = ScriptedModel("hi", name="second")
    result = await within(Agent("a", model=FallbackModel(failing("rate_limited"), second)).run("go"))
    assert result.output == "hi"
    chats = [span for span in telemetry.spans if span.name.startswith("chat")]
    assert [(span.name, attributes(span)["pellucid.attempt"]) for span in chats] == [
        ("chat first", 1),
        ("chat second", 2),
    ]
    assert [ending(span)[0] for span in chats] == ["failed", "completed"]
    names = [event.name for event in telemetry.events if event.name.startswith("inference.")]
    assert names == ["inference.started", "inference.failed", "inference.started", "inference.completed"]


async def test_each_attempt_has_its_input(telemetry: Captured) -> None:
    """The span of each attempt has the messages, instructions and tools."""
    models = FallbackModel(failing("rate_limited"), ScriptedModel("hi", name="second"))
    tools = [Tool(name="read", description="Read.", run=lambda arguments, ctx: "")]
    await within(Agent("a", instructions="Be brief.", model=models, tools=tools).run("go"))
    first, second = (attributes(span) for span in telemetry.spans if span.name.startswith("chat"))
    for name in ("gen_ai.input.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"):
        assert first[name] == second[name]
    assert "pellucid.content.repeated" not in second


async def test_the_run_has_no_single_model(telemetry: Captured) -> None:
    """The span and the metric of a run with a `FallbackModel` name no model."""
    await within(Agent("a", model=FallbackModel(ScriptedModel("hi", name="x"), ScriptedModel(name="y"))).run("go"))
    assert "gen_ai.request.model" not in attributes(telemetry.span("invoke_agent"))
    [point] = [point for point in telemetry.metrics if point.name == "gen_ai.invoke_agent.duration"]
    assert "gen_ai.request.model" not in point.attributes


@pytest.mark.parametrize(
    "kind", ["auth", "circuit_open", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"]
)
async def test_failures_that_another_model_may_not_have(kind: ErrorKind) -> None:
    """The next model is asked after a failure that it may not have."""
    model = FallbackModel(failing(kind), ScriptedModel("hi", "hi"))
    assert (await within(Agent("a", model=model).run("go"))).output == "hi"
    assert (await within(model.generate(ASKED))).message.text == "hi"


@pytest.mark.parametrize("kind", ["invalid_request", "cancelled"])
async def test_failures_that_every_model_would_have(kind: ErrorKind) -> None:
    """The run fails at once after a failure that every model would have."""
    second = ScriptedModel()
    model = FallbackModel(failing(kind), second)
    with pytest.raises(ModelError):
        await within(Agent("a", model=model).run("go"))
    with pytest.raises(ModelError):
        await within(model.generate(ASKED))
    assert second.requests == []


async def test_a_failure_in_a_group_has_the_kind_that_it_has_by_itself() -> None:
    """The kind of a failure in an exception group decides whether the next model is asked."""

    def refused(request: ModelRequest) -> str:
        raise ExceptionGroup("tasks", [ModelError("first", "no", error_kind="invalid_request")])

    second = ScriptedModel()
    with pytest.raises(ModelError) as caught:
        await within(Agent("a", model=FallbackModel(FunctionModel(refused), second)).run("go"))
    assert caught.value.error_kind == "invalid_request"
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert second.requests == []


async def test_the_kinds_can_be_chosen() -> None:
    """`on=` chooses the kinds of failures after which the next model is asked."""
    model = FallbackModel(failing("rate_limited"), ScriptedModel("hi"), on={"timeout"})
    with pytest.raises(ModelError):
        await within(Agent("a", model=model).run("go"))


async def test_when_all_fail_the_last_error_tells_of_the_others() -> None:
    """The last error has notes about the earlier failures."""
    first, second = ScriptedModel(OSError("down"), OSError("down"), name="first"), failing("timeout", "second")
    for attempt in (
        Agent("a", model=FallbackModel(first, second)).run("go"),
        FallbackModel(first, second).generate(ASKED),
    ):
        with pytest.raises(ModelError, match="'second'") as caught:
            await within(attempt)
        assert caught.value.__notes__ == ["earlier failure: call of model 'first' failed: OSError: down"]


async def test_a_stream_goes_on_with_the_next_model_until_something_has_arrived(telemetry: Captured) -> None:
    """A stream falls back before its first piece, and fails if it breaks later."""
    agent = Agent("a", model=FallbackModel(failing("unavailable"), ScriptedModel("all is well")))
    with anyio.fail_after(60):
        async with agent.stream("go") as events:
            pieces = [event.content async for event in events if isinstance(event, InferenceDelta)]
    assert "".join(pieces) == "all is well"
    agent = Agent("a", model=FallbackModel(Broken(), ScriptedModel("another story")))
    with pytest.raises(ModelError, match="the connection broke"):
        await within(read(agent))


async def test_as_a_plain_model_it_streams_by_the_same_rule() -> None:
    """A `FallbackModel` streams by the same rule outside of a run."""
    model = FallbackModel(failing("unavailable"), ScriptedModel("well"))
    items = [item async for item in model.stream(ASKED)]
    assert isinstance(items[-1], ModelResponse)
    assert items[-1].message.text == "well"
    seen: list[object] = []
    stream = FallbackModel(Broken(), ScriptedModel("another")).stream(ASKED)
    seen.append(await anext(stream))
    with pytest.raises(ModelError, match="the connection broke"):
        await anext(stream)
    assert seen == [ModelDelta("text", "Once upon")]


async def test_a_cancellation_is_no_failure_to_fall_back_from() -> None:
    """A cancelled run asks no other model."""
    token, second = CancelToken(), ScriptedModel()

    async def hang(request: ModelRequest) -> str:
        token.cancel("enough")
        await anyio.sleep_forever()
        return ""

    with pytest.raises(RunCancelled):
        await within(Agent("a", model=FallbackModel(FunctionModel(hang), second)).run("go", signal=token))
    assert second.requests == []


async def test_what_it_is_made_of() -> None:
    """Nested `FallbackModel`s are one list, and no model or one given twice is refused."""
    one, two, three = (ScriptedModel(name=name) for name in ("one", "two", "three"))
    model = FallbackModel(one, FallbackModel(two, three))
    assert model.models == (one, two, three)
    assert (model.name, model.provider_name) == ("one", "pellucid.testing")
    with pytest.raises(ConfigError, match="no model is given"):
        FallbackModel()
    with pytest.raises(ConfigError, match="given twice"):
        FallbackModel(one, one)
    with pytest.raises(ConfigError, match="unknown model 'nonsense'"):
        FallbackModel("nonsense")


async def test_options_that_cannot_work_are_refused() -> None:
    """Wrong models and unknown kinds of failures are refused when it is made."""
    one, two = ScriptedModel(name="one"), ScriptedModel(name="two")
    with pytest.raises(ConfigError, match=r"FallbackModel: \[.*\] is not a model.*FallbackModel\(first, second\)"):
        FallbackModel([one, two])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ScriptedModel is a class"):
        FallbackModel(one, ScriptedModel)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown kind of failure 'rate_limit'; did you mean 'rate_limited'"):
        FallbackModel(one, two, on={"rate_limit"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown kind of failure 't'"):
        FallbackModel(one, two, on="timeout")  # type: ignore[arg-type]


async def test_a_model_that_has_models_of_its_own_is_one_model(telemetry: Captured) -> None:
    """Only a `FallbackModel` is taken apart, not a model with an attribute `models` or a wrapper."""

    class Listing(ScriptedModel):
        models = ("echo-1", "echo-2")

    class Wrapped:
        def __init__(self, inner: FallbackModel) -> None:
            self.inner = inner
            self.asked = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def generate(self, request: ModelRequest) -> ModelResponse:
            self.asked += 1
            return await self.inner.generate(request)

    assert (await within(Agent("a", model=Listing("hi")).run("go"))).output == "hi"
    wrapped: Any = Wrapped(FallbackModel(failing("timeout"), ScriptedModel("hi")))
    assert (await within(Agent("a", model=wrapped).run("go"))).output == "hi"
    assert wrapped.asked == 1
    assert [span.name for span in telemetry.spans if span.name.startswith("chat")] == ["chat scripted", "chat first"]


async def test_models_need_only_what_the_protocol_asks_for() -> None:
    """A stream that is any async iterator is read to its end, in a run and outside of one."""

    class Plain:
        name = provider_name = "plain"

        async def generate(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse(message=Message("assistant", "hi"))

        def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            return Once()

    class Once:
        left = 1

        def __aiter__(self) -> AsyncIterator[Any]:
            return self

        async def __anext__(self) -> Any:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return ModelResponse(message=Message("assistant", "hi"))

    model = FallbackModel(Plain(), ScriptedModel())
    assert [item.message.text async for item in model.stream(ASKED) if isinstance(item, ModelResponse)] == ["hi"]
    await within(read(Agent("a", model=model)))


@pytest.mark.parametrize("has_rules", [False, True])
@pytest.mark.parametrize("fails", ["late", "after it was left behind"])
async def test_a_run_whose_time_is_over_asks_no_further_model(
    telemetry: Captured, fails: str, *, has_rules: bool
) -> None:
    """A run whose time is over asks no further model, even if the first one ignores the cancellation."""
    left = anyio.Event()

    async def keep_busy(request: ModelRequest) -> str:
        pass_time()
        while fails != "late" and not left.is_set():
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await left.wait()
        raise OSError("down")

    second = ScriptedModel("hi", name="second")
    model = FallbackModel(FunctionModel(keep_busy, name="first"), second)
    other = Rule(when=lambda s: s.error is not None, then=retry_other(), kind="next")
    limits = Limits(timeout=SOON, model_timeout=SOON)
    agent = Agent("a", model=model, limits=limits, reliability=Reliability([other]) if has_rules else None)
    with pytest.raises((ModelError, RunTimeout)):
        await within(agent.run("go"))
    left.set()
    await anyio.wait_all_tasks_blocked()
    assert (len(telemetry.find("chat first")), telemetry.find("chat second"), second.requests) == (1, [], [])


class Late(ScriptedModel):
    """A model whose stream ignores cancellation, and goes on when it is released."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.release, self.ended = anyio.Event(), anyio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Yield a piece after the release."""
        pass_time()
        try:
            while not self.release.is_set():
                with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                    await self.release.wait()
            yield ModelDelta("text", "late")
            yield ModelDelta("text", "later")
        finally:
            self.ended.set()


@pytest.mark.parametrize("has_rules", [False, True])
async def test_a_stream_that_was_left_behind_says_nothing_in_the_next_one(
    telemetry: Captured, *, has_rules: bool
) -> None:
    """Pieces of a stream that timed out are neither read nor measured while the next model answers."""
    first = Late("first")

    class Second(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            yield ModelDelta("text", "Good ")
            first.release.set()
            await first.ended.wait()
            yield ModelDelta("text", "day")
            yield ModelResponse(message=Message("assistant", "Good day"))

    rules = Reliability([Rule(when=lambda s: False, then=retry_other(), kind="x")]) if has_rules else None
    model = FallbackModel(first, Second(name="second"))
    agent = Agent("a", model=model, limits=Limits(model_timeout=SOON), reliability=rules)
    pieces: list[str] = []

    async def listen() -> None:
        async with agent.stream("go") as events:
            pieces.extend([event.content async for event in events if isinstance(event, InferenceDelta)])

    await within(listen())
    assert pieces == ["Good ", "day"]
    chunks = [point for point in telemetry.metrics if point.name == "gen_ai.client.operation.time_to_first_chunk"]
    assert [point.attributes["gen_ai.request.model"] for point in chunks] == ["second"]


async def test_a_stream_that_was_left_behind_with_its_run_says_nothing(telemetry: Captured) -> None:
    """A stream that was left behind with its run adds nothing to its telemetry."""
    model = Late("first")
    with pytest.raises(RunTimeout):
        await within(read(Agent("a", model=model, limits=Limits(timeout=SOON))))
    model.release.set()
    await within(model.ended.wait())
    await anyio.wait_all_tasks_blocked()
    assert telemetry.events[-1].name == "run.failed"
    assert [point for point in telemetry.metrics if "chunk" in point.name] == []


async def test_a_run_that_is_cancelled_by_a_model_asks_no_other(telemetry: Captured) -> None:
    """A run that its model cancels asks no other model."""
    token = CancelToken()

    def cancel(request: ModelRequest) -> str:
        token.cancel()
        raise OSError("down")

    model = FallbackModel(FunctionModel(cancel, name="first"), ScriptedModel("hi", name="second"))
    with pytest.raises(RunCancelled):
        await within(Agent("a", model=model).run("go", signal=token))
    assert telemetry.find("chat second") == []


async def test_closing_it_closes_its_models() -> None:
    """Closing a `FallbackModel` closes those of its models that can be closed."""
    closed: list[str] = []

    class Closable(ScriptedModel):
        async def aclose(self) -> None:
            closed.append(self.name)

    await FallbackModel(Closable(name="one"), ScriptedModel(name="two"), Closable(name="three")).aclose()
    assert closed == ["one", "three"]
