"""Conversations of durable runs: each run continues after those before it, one at a time."""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, Decision, Identity, Message, ModelError, Skill, Tool, ToolCall
from pellucid.durable import Changes, DurableRuns, RunDue
from pellucid.durable.runs.conversations import conversation_key
from pellucid.errors import ConversationBusy, UnknownConversation
from pellucid.testing import FunctionModel, ScriptedModel
from support.durable_agents import DO, JOB, OWED, PAY, Stop, ended
from support.processes import PATIENCE, command
from support.runs import within
from support.stores import claimed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pellucid.durable import RunStore
    from pellucid.models import ModelRequest
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ANN, BOB = Identity(tenant="t", principal="ann"), Identity(tenant="t", principal="bob")


def said(messages: Sequence[Message]) -> list[str]:
    """Return role and text of messages; the names of calls, and the ids of results."""
    return [
        f"{message.role}: {message.text}"
        f"{','.join(call.name for call in message.tool_calls)}{','.join(part.id for part in message.tool_results)}"
        for message in messages
    ]


def counting() -> Agent:
    """Return an agent that answers with the number of messages that its model got."""
    return Agent("a", model=FunctionModel(lambda request: str(len(request.messages))))


async def test_a_run_continues_after_those_before_it(store: RunStore) -> None:
    """A run of a conversation gets the messages of the earlier runs, and its row has its own only."""
    model = ScriptedModel(ToolCall("do", {}, "c1"), "one", "two", "three")
    runs = DurableRuns(store, [Agent("a", model=model, tools=[DO])])
    ids = []
    for text in ("first", "second", "third"):
        ids.append(await runs.submit("a", text, conversation_id="c"))
        await within(runs.work_until_idle())
    assert said(model.requests[-1].messages) == [
        *("user: first", "assistant: do", "tool: c1", "assistant: one"),
        *("user: second", "assistant: two", "user: third"),
    ]
    state = await runs.status(ids[1])
    assert (said(state.messages), state.identity) == (
        ["user: second", "assistant: two"],
        Identity(conversation_id="c"),
    )
    conversation = await runs.conversation("c")
    assert [run.run_id for run in conversation.runs] == ids
    assert said(conversation.messages) == [*said(model.requests[-1].messages), "assistant: three"]
    assert (conversation.open_run, conversation.before) == (None, None)


async def test_runs_without_a_conversation_see_their_own_messages(store: RunStore) -> None:
    """A run without a conversation sees its own messages only, even if its identity names a conversation."""
    runs = DurableRuns(store, [counting()])
    for _ in range(2):
        run_id = await runs.submit("a", "x", identity=Identity(conversation_id="c"))
        await within(runs.work_until_idle())
        assert (await runs.status(run_id)).output == "1"
    with pytest.raises(UnknownConversation, match="'c'"):
        await runs.conversation("c")


async def test_history_and_conversation_exclude_each_other(store: RunStore) -> None:
    """A submission with both a history and a conversation raises ConfigError."""
    runs = DurableRuns(store, [counting()])
    with pytest.raises(ConfigError, match="history= or conversation_id="):
        await runs.submit("a", "x", history=[Message("user", "y")], conversation_id="c")


async def test_lazy_tools_and_skills_stay_active(store: RunStore) -> None:
    """Tools and skills that one run has discovered and loaded are there in the first request of the next run."""
    lazy = Tool(name="order", description="Order.", run=lambda _arguments, _ctx: "ordered", lazy=True)
    skill = Skill("refunds", description="Refund.", body="Only once.", tools=[DO])
    discover = ToolCall("__lazy__tool__discovery__", {"toolNames": ["order"]}, "c1")
    load = ToolCall("load_skill", {"skill_id": "refunds"}, "c2")
    model = ScriptedModel(discover, load, "ready", "again")
    runs = DurableRuns(store, [Agent("a", model=model, tools=[lazy], skills=[skill])])
    for text in ("prepare", "go on"):
        await runs.submit("a", text, conversation_id="c")
        await within(runs.work_until_idle())
    before, after = ({tool.name for tool in model.requests[number].tools} for number in (0, -1))
    assert not {"order", "do"} & before
    assert {"order", "do"} <= after


async def test_another_principal_has_its_own_conversation(store: RunStore) -> None:
    """A conversation id of another principal or tenant is another conversation, and does not keep a run out."""
    runs = DurableRuns(store, [counting()])
    await runs.submit("a", "x", conversation_id="c", identity=ANN)
    others = [BOB, Identity(tenant="u", principal="ann"), Identity()]
    ids = [await runs.submit("a", "x", conversation_id="c", identity=other) for other in others]
    await within(runs.work_until_idle())
    for run_id, other in zip(ids, others, strict=True):
        assert (await runs.status(run_id)).output == "1"
        assert [run.run_id for run in (await runs.conversation("c", identity=other)).runs] == [run_id]
    with pytest.raises(UnknownConversation):
        await runs.conversation("c", identity=Identity(principal="eve"))


async def test_a_second_run_is_refused_while_one_is_open(store: RunStore) -> None:
    """A second run is refused while one is due, running or waiting; the error names it, and nothing is written."""
    stop = Stop()
    model = FunctionModel(lambda request: ToolCall("pay", {}, "c1") if len(request.messages) == 1 else "done")
    stopping = Agent("a", model=FunctionModel(stop.now))
    runs = DurableRuns(store, [Agent("a", model=model, tools=[PAY])])
    first = await runs.submit("a", "x", conversation_id="c")

    async def refused() -> None:
        with pytest.raises(ConversationBusy, match=first) as caught:
            await runs.submit("a", "y", conversation_id="c")
        assert caught.value.run_id == first
        assert [run.run_id for run in (await store.list_runs()).runs] == [first]

    await refused()
    claim = await store.claim("worker", ["a"], 60)
    assert claim is not None
    await refused()
    await store.release(claim)
    await stop.work(DurableRuns(store, [stopping]))
    await within(runs.work_until_idle())
    assert (await runs.status(first)).status == "waiting"
    await refused()
    open_run = (await runs.conversation("c")).open_run
    assert open_run is not None
    assert (open_run.run_id, [request.tool_name for request in open_run.approvals]) == (first, ["pay"])
    await ended(runs, first)
    second = await runs.submit("a", "y", conversation_id="c")
    assert (await ended(runs, second)).output == "done"


async def test_the_same_submission_twice_is_one_run(store: RunStore) -> None:
    """A submission with the id or key of an earlier one is the same run, also while that run keeps others out."""
    runs = DurableRuns(store, [counting()])
    for _ in range(2):
        assert await runs.submit("a", "x", conversation_id="c", run_id="one", idempotency_key="k") == "one"
    await within(runs.work_until_idle())
    assert await runs.submit("a", "x", conversation_id="c", idempotency_key="k") == "one"
    assert (await ended(runs, await runs.submit("a", "y", conversation_id="c"))).output == "3"


@pytest.mark.parametrize("conversations", ["refuse", "queue"])
async def test_submissions_at_once(location: Location, store: RunStore, conversations: Any) -> None:
    """Of submissions at once by two servers one is accepted, or all are and run in turn; no message is lost."""
    done: list[str] = []
    async with location.open() as other:
        servers = [DurableRuns(each, [counting()], conversations=conversations) for each in (store, other)]

        async def submit(number: int) -> None:
            try:
                done.append(await servers[number % 2].submit("a", str(number), conversation_id="c"))
            except ConversationBusy:
                assert conversations == "refuse"

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(submit, number)
            async with anyio.create_task_group() as tasks:
                for server in servers:
                    tasks.start_soon(server.work)
                for run_id in done:
                    async for _ in servers[0].events(run_id):
                        pass
                tasks.cancel_scope.cancel()
    runs = (await servers[0].conversation("c")).runs
    assert len(runs) == len(done) == (1 if conversations == "refuse" else 8)
    assert [run.output for run in runs] == [str(2 * number + 1) for number in range(len(done))]


async def test_queued_runs_start_in_order(store: RunStore) -> None:
    """A queued run becomes due in the commit that ends the one before; until then it is queued and not claimed."""
    runs = DurableRuns(store, [counting()], conversations="queue")
    changes: list[Changes] = []
    store.on_commit(changes.append)
    first, second, third = [await runs.submit("a", text, conversation_id="c") for text in ("x", "y", "z")]
    assert [item for change in changes for item in change.due] == [RunDue(first, "a", 0)]
    assert [(await runs.status(run_id)).status for run_id in (first, second, third)] == ["due", "queued", "queued"]
    assert {run.run_id for run in (await store.list_runs(status="queued")).runs} == {second, third}
    assert [run.run_id for run in (await store.list_runs(status="due")).runs] == [first]
    assert (await store.statistics()).runs == {"due": 1, "queued": 2}
    claim = await store.claim("worker", ["a"], 60)
    assert claim is not None
    assert claim.run.id == first
    assert await store.claim("worker", ["a"], 60) is None
    assert await store.claim_run(second, "a", "worker", 60) is None
    changes.clear()
    await store.finish(claim, "completed", {"output": "", "messages": []})
    assert [item for change in changes for item in change.due] == [RunDue(second, "a", 0)]
    assert (await runs.status(second)).status == "due"
    await within(runs.work_until_idle())
    assert [(await runs.status(run_id)).output for run_id in (second, third)] == ["1", "3"]


@pytest.mark.parametrize(
    "end", ["cancelled", "cancelled while it waits", "cancelled by its worker", "failed", "given up"]
)
async def test_a_queued_run_starts_after_any_end(store: RunStore, end: str) -> None:
    """A queued run starts after the one before has failed, was cancelled in any way, or was given up."""
    calls = [ToolCall("pay", {}, "c1")]

    async def act(request: ModelRequest) -> Any:
        if request.messages[0].text == "fail":
            raise ModelError("m", "no", error_kind="auth")
        return calls if len(request.messages) == 1 and end == "cancelled while it waits" else "done"

    runs = DurableRuns(
        store, [Agent("a", model=FunctionModel(act), tools=[PAY])], conversations="queue", max_expired_leases=1
    )
    first = await runs.submit("a", "fail" if end == "failed" else "x", conversation_id="c")
    second = await runs.submit("a", "y", conversation_id="c")
    if end == "given up":
        for _ in range(3):
            await store.claim("worker", ["a"], 0)
    elif end == "cancelled by its worker":
        claim = await store.claim("worker", ["a"], 60)
        assert claim is not None
        assert (await runs.cancel(first, "no")).outcome == "requested"
        assert await store.end_pass(claim, {"version": 1}) == "cancelled"
    elif end != "cancelled":
        await within(runs.work_until_idle())
    if end.endswith(("cancelled", "waits")):
        assert (await runs.cancel(first, "no")).outcome == "cancelled"
    await within(runs.work_until_idle())
    assert (await runs.status(first)).status == ("failed" if end in ("failed", "given up") else "cancelled")
    assert (await runs.status(second)).output == "done"


async def test_a_queued_run_is_cancelled(store: RunStore) -> None:
    """A queued run that is cancelled never runs, and those behind it move up."""
    runs = DurableRuns(store, [counting()], conversations="queue")
    first, second, third = [await runs.submit("a", text, conversation_id="c") for text in ("x", "y", "z")]
    assert (await runs.cancel(second, "no")).outcome == "cancelled"
    assert [(await runs.status(run_id)).status for run_id in (first, third)] == ["due", "queued"]
    await within(runs.work_until_idle())
    assert [(await runs.status(run_id)).output for run_id in (first, second, third)] == ["1", None, "3"]


async def test_a_run_that_an_older_version_has_ended(location: Location, store: RunStore) -> None:
    """A run that an older version has ended starts no other; the next sweep starts one, once."""
    runs = DurableRuns(store, [counting()], conversations="queue")
    first, second, third = [await runs.submit("a", text, conversation_id="c") for text in ("x", "y", "z")]
    location.execute(f"UPDATE runs SET status = 'failed', due_at = NULL WHERE id = '{first}'")
    assert (await runs.recover()).run_ids == ()
    assert [(await runs.status(run_id)).status for run_id in (second, third)] == ["due", "queued"]
    await runs.recover()
    assert (await runs.status(third)).status == "queued"


async def test_a_run_that_failed_leaves_what_was_done(store: RunStore) -> None:
    """A run that failed leaves its calls with their results in the conversation, and the next run reads them."""
    model = ScriptedModel(ToolCall("do", {}, "c1"), ModelError("m", "no", error_kind="auth"), "back")
    runs = DurableRuns(store, [Agent("a", model=model, tools=[DO])])
    first = await runs.submit("a", "go", conversation_id="c")
    await within(runs.work_until_idle())
    assert (await runs.status(first)).status == "failed"
    await runs.submit("a", "again", conversation_id="c")
    await within(runs.work_until_idle())
    assert said(model.requests[-1].messages) == ["user: go", "assistant: do", "tool: c1", "user: again"]


@pytest.mark.parametrize("value", ["no JSON", "{}", '{"step": "answer", "state": {}}'])
async def test_a_run_whose_steps_are_damaged_leaves_nothing(location: Location, store: RunStore, value: str) -> None:
    """A failed run whose steps are damaged leaves nothing in the conversation, which goes on without it."""
    model = ScriptedModel(ToolCall("do", {}, "c1"), ModelError("m", "no", error_kind="auth"), "back")
    runs = DurableRuns(store, [Agent("a", model=model, tools=[DO])])
    await runs.submit("a", "go", conversation_id="c")
    await within(runs.work_until_idle())
    location.execute(f"UPDATE journal SET value = '{value}'")
    assert (await ended(runs, await runs.submit("a", "again", conversation_id="c"))).output == "back"
    assert said((await runs.conversation("c")).messages) == ["user: again", "assistant: back"]


async def test_a_run_that_failed_before_its_first_answer_leaves_nothing(store: RunStore) -> None:
    """A run that failed before its first answer leaves nothing, so its message can be sent again."""
    model = ScriptedModel(ModelError("m", "no", error_kind="auth"), "hello")
    runs = DurableRuns(store, [Agent("a", model=model)])
    for _ in range(2):
        await runs.submit("a", "hi", conversation_id="c")
        await within(runs.work_until_idle())
    assert said(model.requests[-1].messages) == ["user: hi"]
    assert said((await runs.conversation("c")).messages) == ["user: hi", "assistant: hello"]


async def test_the_steps_of_a_run_that_was_given_up_are_not_read(location: Location, store: RunStore) -> None:
    """The steps of a run that was given up are not read, since they may be what ended its processes."""
    runs = DurableRuns(store, [counting()], max_expired_leases=1)
    await runs.submit("a", "x", conversation_id="c")
    claim = await store.claim("worker", ["a"], 60)
    assert claim is not None
    assert claim.conversation is not None
    await store.append(claim, "answer:1", {"step": "answer", "state": "huge"})
    for _ in range(3):
        location.end_leases()
        assert await store.claim("worker", ["a"], 60) is not None
    location.end_leases()
    await within(runs.work_until_idle())
    [turn] = (await store.conversation(claim.conversation)).turns
    assert (turn.run.status, turn.journal) == ("failed", ())
    assert (await ended(runs, await runs.submit("a", "y", conversation_id="c"))).output == "1"


async def test_calls_of_a_cancelled_run_have_results(store: RunStore) -> None:
    """A run that is cancelled while it waits has a result for each call of its last message."""
    calls = [ToolCall(name, {}, f"c-{name}") for name in ("do", "pay", "owed", "job")]
    model = ScriptedModel(calls, "next")
    runs = DurableRuns(store, [Agent("a", model=model, tools=[DO, PAY, OWED, JOB])])
    first = await runs.submit("a", "go", conversation_id="c")
    await within(runs.work_until_idle())
    await runs.cancel(first, "changed my mind")
    await runs.submit("a", "what now?", conversation_id="c")
    await within(runs.work_until_idle())
    user, assistant, tool, last = model.requests[-1].messages
    assert (user.text, last.text) == ("go", "what now?")
    found = {part.id: part for part in tool.tool_results}
    assert list(found) == [call.id for call in assistant.tool_calls]
    assert found["c-do"].response == "c-do done"
    assert all(found[name].is_error for name in ("c-pay", "c-owed"))
    assert "cancelled" in str(found["c-pay"].response)


async def test_a_conversation_survives_killed_workers(location: Location, store: RunStore) -> None:
    """A run whose worker ended in the middle goes on with the history, before and after it has waited."""
    stop, steps = Stop(), iter(["one", ToolCall("do", {}, "c1"), ToolCall("pay", {}, "c2"), None, "two", "three"])
    seen: list[list[str]] = []

    async def act(request: ModelRequest) -> Any:
        seen.append(said(request.messages))
        return next(steps) or await stop.now()

    runs = DurableRuns(store, [Agent("a", model=FunctionModel(act), tools=[DO, PAY])])
    await ended(runs, await runs.submit("a", "first", conversation_id="c"), location)
    second = await runs.submit("a", "second", conversation_id="c")
    await within(runs.work_until_idle())
    waiting = await runs.status(second)
    assert said(waiting.messages)[0] == "user: second"
    await runs.decide(second, [Decision(waiting.approvals[0].approval_id, approved=True)])
    await stop.work(runs)
    assert (await ended(runs, second, location)).output == "two"
    await ended(runs, await runs.submit("a", "third", conversation_id="c"), location)
    own = ["user: second", "assistant: do", "tool: c1", "assistant: pay", "tool: c2"]
    assert seen[-3] == seen[-2] == ["user: first", "assistant: one", *own]
    assert seen[-1] == [*seen[-2], "assistant: two", "user: third"]


async def test_a_long_conversation_holds_nobody_up(location: Location, store: RunStore) -> None:
    """A conversation of thousands of runs takes and sweeps further runs within the time limit."""
    key = conversation_key(Identity(conversation_id="c"))
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    location.execute(
        f"INSERT INTO runs (id, agent, status, request, request_digest, created_at, updated_at) "
        f"{numbers} SELECT 'r' || i, 'a', 'completed', '{{}}', '', 1, 1 FROM n"
    )
    location.execute(f"INSERT INTO turns (run_id, conversation, turn) {numbers} SELECT 'r' || i, '{key}', i FROM n")
    location.execute(f"INSERT INTO conversations (id, last_turn, updated_at) VALUES ('{key}', 20000, 1)")
    runs = DurableRuns(store, [counting()], conversations="queue")
    first, second = [await runs.submit("a", "x", conversation_id="c") for _ in range(2)]
    assert (await runs.cancel(first, "no")).outcome == "cancelled"
    with anyio.fail_after(20):
        others = [await runs.submit("a", "x", conversation_id="c") for _ in range(200)]
        await runs.recover()
    assert [(await runs.status(run_id)).status for run_id in (second, others[0])] == ["due", "queued"]


async def test_conversations_are_read_in_pages(store: RunStore) -> None:
    """The latest runs come first, in order within a page; `before` leads to those before."""
    runs = DurableRuns(store, [counting()])
    for number in range(5):
        await ended(runs, await runs.submit("a", str(number), conversation_id="c"))
    pages: list[list[str]] = []
    before: int | None = None
    while not pages or before is not None:
        page = await runs.conversation("c", before=before, limit=2)
        pages.append([run.messages[0].text for run in page.runs])
        before = page.before
    assert pages == [["3", "4"], ["1", "2"], ["0"]]
    for limit in (0, 101):
        with pytest.raises(ConfigError, match=f"limit={limit}"):
            await runs.conversation("c", limit=limit)


async def test_a_conversation_is_purged_as_a_whole(location: Location, store: RunStore) -> None:
    """A conversation is purged once all of its runs have ended long enough ago; a later run keeps the earlier ones."""
    runs = DurableRuns(store, [counting()])
    for conversation_id, texts in (("old", "xy"), ("live", "xy"), ("open", "x")):
        for text in texts:
            await ended(runs, await runs.submit("a", text, conversation_id=conversation_id))
    location.execute("UPDATE runs SET created_at = created_at - 1000, updated_at = updated_at - 1000")
    location.execute("UPDATE conversations SET updated_at = updated_at - 1000")
    await ended(runs, await runs.submit("a", "z", conversation_id="live"))
    await runs.submit("a", "y", conversation_id="open")
    location.execute("UPDATE conversations SET updated_at = updated_at - 1000")
    location.execute("UPDATE runs SET updated_at = updated_at - 1000 WHERE status = 'due'")
    assert await store.purge(500) == 2
    with pytest.raises(UnknownConversation):
        await runs.conversation("old")
    assert [len((await runs.conversation(name)).runs) for name in ("live", "open")] == [3, 2]
    assert (await ended(runs, await runs.submit("a", "x", conversation_id="old"))).output == "1"


async def test_a_run_submitted_during_a_purge_stays(location: Location, store: RunStore) -> None:
    """A run that is submitted between the look of a purge and its deletion keeps its conversation."""
    runs = DurableRuns(store, [counting()])
    async with location.open() as other:
        for number in range(40):
            await runs.cancel(await runs.submit("a", "x", conversation_id=str(number)), "no")
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(other.purge, 0)
                    second = await runs.submit("a", "y", conversation_id=str(number))
            assert (await runs.status(second)).status == "due"


async def test_a_claim_of_another_run_is_not_a_conversation(store: RunStore) -> None:
    """A run that was submitted without a conversation has none."""
    assert (await claimed(store)).conversation is None


KILLED = """
    import json, os, signal, sys
    from pathlib import Path

    import anyio

    from pellucid import Agent
    from pellucid.durable import open_store
    from pellucid.durable import DurableRuns
    from pellucid.testing import FunctionModel

    url, options, seen = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])


    def answer(request):
        mark = seen / request.messages[-1].text
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return str(len(request.messages))


    async def main():
        async with open_store(url, **options) as store:
            await DurableRuns(store, [Agent("a", model=FunctionModel(answer))], lease=1, poll=0.05).work(concurrency=1)


    anyio.run(main)
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the workers are processes of their own
async def test_queued_runs_keep_their_order_when_workers_are_killed(
    location: Location, store: RunStore, tmp_path: Path
) -> None:
    """Queued runs keep their order, one at a time in each conversation, although each kills its first worker."""
    runs = DurableRuns(store, [], conversations="queue")
    ids = {name: [await runs.submit("a", f"{name}{n}", conversation_id=name) for n in range(3)] for name in "cd"}
    await anyio.Path(tmp_path / "seen").mkdir()
    program = command(KILLED, *location.arguments, tmp_path / "seen")
    with ExitStack() as stack, anyio.fail_after(PATIENCE):
        workers = [stack.enter_context(started(program)) for _ in range(2)]
        deaths = 0
        while deaths < 6:
            for index, worker in enumerate(workers):
                if worker.poll() is not None:
                    assert worker.returncode == -signal.SIGKILL
                    deaths += 1
                    workers[index] = stack.enter_context(started(program))
            await anyio.sleep(0.02)
        for name in "cd":
            async for _ in runs.events(ids[name][-1]):
                pass
    for name in "cd":
        found = (await runs.conversation(name)).runs
        assert [(run.run_id, run.output) for run in found] == list(zip(ids[name], ["1", "3", "5"], strict=True))


@contextmanager
def started(program: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program within the context."""
    with subprocess.Popen(program) as process:
        try:
            yield process
        finally:
            process.kill()
