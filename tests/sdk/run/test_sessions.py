"""Conversations that are kept between runs: in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import pytest

from pellucid import Agent, ConfigError, Identity, Message, ModelError, Tool, ToolCall, semconv
from pellucid.durable import RunStore, open_store
from pellucid.errors import ConversationBusy, StoreUnavailable
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured
    from support.postgres_server import PostgresServer
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def kept(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path: Path, postgres: Callable[[], PostgresServer]
) -> AsyncIterator[RunStore | None]:
    """Return where sessions are kept."""
    if request.param == "memory":
        yield None
        return
    url, options = f"sqlite:///{tmp_path}/sessions.db", {}
    if request.param == "postgres":
        url, options = postgres().url, {"schema": f"test_{uuid4().hex[:12]}"}
    async with open_store(url, **options) as store:
        yield store


def counting() -> FunctionModel:
    """Return a model that answers with the number of messages that it got."""
    return FunctionModel(lambda request: str(len(request.messages)))


async def test_each_run_continues_the_ones_before(telemetry: Captured, kept: RunStore | None) -> None:
    """The model gets the whole conversation; its id is on the spans, and other ids and agents have their own."""
    agent = Agent("a", model=counting())
    for expected in ("1", "3", "5"):
        assert (await within(agent.session("customer-7", store=kept).run("go"))).output == expected
    assert (await within(agent.session("customer-8", store=kept).run("go"))).output == "1"
    other = agent.session("customer-7", store=kept, identity=Identity(tenant="other"))
    assert (await within(other.run("go"))).output == "1"
    assert (await within(Agent("b", model=counting()).session("customer-7", store=kept).run("go"))).output == "1"
    session = agent.session("customer-7", store=kept)
    assert [message.text for message in await session.messages()] == ["go", "1", "go", "3", "go", "5"]
    spans = [*telemetry.find("invoke_agent"), *telemetry.find("chat")]
    assert {attributes(span)[semconv.CONVERSATION_ID] for span in spans} == {"customer-7", "customer-8"}


async def test_a_window_has_whole_runs(kept: RunStore | None) -> None:
    """At least so many messages are loaded, and no call without its result; the conversation stays whole."""

    def answer(request: ModelRequest) -> Any:
        return ToolCall("look", {}) if request.messages[-1].role == "user" else "done"

    async def found(arguments: Any, ctx: Any) -> str:
        return "found"

    look = Tool(name="look", description="Look.", run=found)
    model = FunctionModel(answer)
    agent = Agent("a", model=model, tools=[look])
    for _ in range(23):
        await within(agent.session("w", store=kept, window=2).run("go"))
    roles = [message.role for message in model.requests[-2].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    await within(agent.session("w", store=kept, window=85).run("go"))
    assert len(model.requests[-2].messages) == 89
    assert len(await agent.session("w", store=kept).messages()) == 24 * 4


async def test_a_second_run_is_refused(kept: RunStore | None) -> None:
    """While one has not ended, another raises, also of a second `Session`; afterwards it continues."""
    entered, leave = anyio.Event(), anyio.Event()

    async def slowly(request: ModelRequest) -> str:
        entered.set()
        await leave.wait()
        return str(len(request.messages))

    agent = Agent("a", model=FunctionModel(slowly))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.session("busy", store=kept).run, "one")
            await entered.wait()
            with pytest.raises(ConversationBusy, match="send it again when that run has ended") as busy:
                await agent.session("busy", store=kept).run("two")
            leave.set()
        assert ("60 seconds after its process was killed" in str(busy.value)) is (kept is not None)
        assert "DurableRuns" not in str(busy.value)
        assert (await agent.session("busy", store=kept).run("three")).output == "3"


async def test_a_stream_adds_its_messages(kept: RunStore | None) -> None:
    """Once its block is left; of one that is left early, there is no answer to keep."""
    session = Agent("a", model=counting()).session("streamed", store=kept)
    with anyio.fail_after(60):
        async with session.stream("go") as events:
            assert [text async for text in events.text()] == ["1"]
        assert events.result.output == "1"
        async with session.stream("go") as events:
            pass
        async with session.stream("go") as events:
            assert [text async for text in events.text()] == ["3"]
    assert [message.text for message in await session.messages()] == ["go", "1", "go", "3"]


async def test_a_failed_run_keeps_what_it_has(kept: RunStore | None) -> None:
    """Its messages up to the last answer, with results, so that the next run continues; a first failure adds none."""
    calls = [ToolCall("look", {})]

    async def found(arguments: Any, ctx: Any) -> str:
        return "found"

    down = ModelError("m", "down", error_kind="unavailable")
    model = ScriptedModel(down, calls, down, "done")
    session = Agent("a", model=model, tools=[Tool(name="look", description="Look.", run=found)]).session(
        "f", store=kept
    )
    for expected in ([], ["user", "assistant", "tool"]):
        with pytest.raises(ModelError):
            await within(session.run("go"))
        assert [message.role for message in await session.messages()] == expected
    assert (await within(session.run("and now?"))).output == "done"
    assert [message.role for message in model.requests[-1].messages] == ["user", "assistant", "tool", "user"]


async def test_a_cancelled_run_frees_the_conversation(kept: RunStore | None) -> None:
    """The next run starts with what was there before."""
    entered = anyio.Event()

    async def hang(request: ModelRequest) -> str:
        if not entered.is_set():
            entered.set()
            await anyio.sleep_forever()
        return str(len(request.messages))

    session = Agent("a", model=FunctionModel(hang)).session("cancelled", store=kept)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run, "go")
            await entered.wait()
            tasks.cancel_scope.cancel()
        assert (await session.run("go")).output == "1"


async def test_a_run_that_pauses_adds_nothing(kept: RunStore | None) -> None:
    """Its checkpoint is the caller's; the conversation is as before, and has no call without a result."""

    async def pay(arguments: Any, ctx: Any) -> str:
        return "paid"

    tool = Tool(name="pay", description="Pay.", run=pay, needs_approval=True)
    session = Agent("a", model=ScriptedModel("hi", ToolCall("pay", {}), "done"), tools=[tool]).session("p", store=kept)
    await within(session.run("hello"))
    assert (await within(session.run("pay"))).status == "awaiting_approval"
    assert [message.text for message in await session.messages()] == ["hello", "hi"]


async def test_a_process_that_was_killed(store: RunStore, location: Location) -> None:
    """Its turn keeps others waiting until its lease ends, and then adds nothing."""
    session = Agent("a", model=counting()).session("killed", store=store)
    await within(session.run("go"))
    left, _ = await session._turns.begin(None)
    assert len(left) == 2
    with pytest.raises(ConversationBusy):
        await within(session.run("go"))
    location.end_leases()
    assert (await within(session.run("go"))).output == "3"


class Unavailable(RunStore):
    """A store whose runs cannot be finished."""

    async def finish(self, *args: Any, **options: Any) -> Any:
        """Fail."""
        raise StoreUnavailable("sessions.db")


async def test_messages_that_cannot_be_stored(tmp_path: Path) -> None:
    """The error has them, and the facts of the run."""
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        store.__class__ = Unavailable
        session = Agent("a", model=ScriptedModel("hi")).session("lost", store=store)
        with pytest.raises(StoreUnavailable) as failed:
            await within(session.run("hello"))
    error: Any = failed.value
    assert [message.text for message in error.messages] == ["hello", "hi"]
    assert error.run_id


def test_sync_code() -> None:
    """`run_sync` keeps the conversation, too."""
    session = Agent("a", model=counting()).session("sync")
    assert [session.run_sync("go").output for _ in range(2)] == ["1", "3"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("", {}), "1 to 255 printable"),
        ((None, {}), "1 to 255 printable"),
        (("x", {"window": 0}), "window=0"),
        (("x", {"store": "sqlite:///x.db"}), "must be an open store"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, problem: str) -> None:
    """The error names the agent, the value and the remedy."""
    session_id, options = arguments
    with pytest.raises(ConfigError, match=problem):
        Agent("a", model=counting()).session(session_id, **options)


async def test_options_that_a_session_decides() -> None:
    """History and identity belong to the session."""
    session: Any = Agent("a", model=counting()).session("x")
    with pytest.raises(TypeError, match="history"):
        await within(session.run("go", history=[Message("user", "x")]))
