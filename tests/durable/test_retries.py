"""Passes that fail and are retried, and runs that go on after they had ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, ModelError, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns, FailedPass, RetryPolicy, Streak
from pellucid.errors import CircuitOpen, ConversationBusy, Fenced, ModelTimeout, OutputError
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.durable_agents import DO, OWED, PAY, results
from support.runs import within
from support.stores import claimed

if TYPE_CHECKING:
    from pellucid import PermissionRequest, ToolContext
    from pellucid.durable import RunState, RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DOWN = ModelError("m", "down", error_type="503", error_kind="unavailable")


def halting(request: PermissionRequest) -> Any:
    """End the run at each call."""
    return "halt" if request.stage == "dispatch" else "allow"


def is_due(location: Location) -> None:
    """Let the time of the next attempt of all runs have come."""
    location.execute("UPDATE runs SET due_at = due_at - 10000 WHERE status = 'due'")


async def worked(runs: DurableRuns, run_id: str, location: Location) -> RunState:
    """Work on a run through all its attempts, without waiting; return how it has ended or what it waits for."""
    with anyio.fail_after(60):
        while True:
            await runs.work_until_idle()
            state = await runs.status(run_id)
            if state.status != "retrying":
                return state
            is_due(location)


async def events_of(runs: DurableRuns, run_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return type and data of the events of a run so far, but those of steps."""
    page = await runs.event_page(run_id)
    return [(event.type, dict(event.data)) for event in page.events if not event.type.startswith("step.")]


async def test_a_pass_that_fails_is_retried_from_the_journal(location: Location, store: RunStore) -> None:
    """The next pass goes on where the last one failed: a tool that had a result keeps it, with one idempotency key."""
    keys: list[str] = []

    async def pay(arguments: Any, ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    model = ScriptedModel(ToolCall("pay", {}, "c"), DOWN, "done")
    agent = Agent("a", model=model, tools=[Tool(name="pay", run=pay)])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.attempts, state.last_error_type) == ("retrying", 1, "503")
    assert state.last_error is not None
    assert "down" in state.last_error
    assert state.failed_at is not None
    assert state.next_attempt_at is not None
    assert state.failed_at <= state.next_attempt_at <= state.failed_at + 10
    [(name, data)] = await events_of(runs, run_id)
    assert (name, data) == (
        "run.retrying",
        {"error_type": "503", "attempt": 1, "next_at": state.next_attempt_at},
    )
    is_due(location)
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output, results(state)) == ("completed", "done", {"c": "paid"})
    assert len(keys) == 1
    assert (state.next_attempt_at, state.last_error_type) == (None, "503")


async def test_a_run_that_retries_is_not_due_before_its_time(store: RunStore) -> None:
    """No worker takes it before; lists and numbers have it as retrying, and not as due."""
    agent = Agent("a", model=ScriptedModel(DOWN, "done"))
    runs = DurableRuns(store, [agent], retry=RetryPolicy(jitter=lambda: 1.0))
    run_id = await runs.submit(agent, "go")
    assert await within(runs.work_until_idle()) == 1
    assert await within(runs.work_until_idle()) == 0
    state = await runs.status(run_id)
    assert state.failed_at is not None
    assert state.next_attempt_at is not None
    assert math.isclose(state.next_attempt_at - state.failed_at, 10.0, abs_tol=1.0)
    assert [run.run_id for run in (await store.list_runs(status="retrying")).runs] == [run_id]
    assert (await store.list_runs(status="due")).runs == ()
    assert [run.status for run in (await store.list_runs()).runs] == ["retrying"]
    assert (await runs.event_page(run_id)).status == "retrying"
    statistics = await store.statistics(is_open_only=True)
    assert statistics.runs == {"retrying": 1}
    assert [(retrying.agent, retrying.number) for retrying in statistics.retrying] == [("a", 1)]


async def test_a_run_that_retries_is_continued_at_once(store: RunStore) -> None:
    """As when what failed is back: its attempts are counted anew, and its conversation stays its own."""
    agent = Agent("a", model=ScriptedModel(DOWN, DOWN, "done"))
    runs = DurableRuns(store, [agent], retry=RetryPolicy(jitter=lambda: 1.0))
    run_id = await runs.submit(agent, "go", conversation_id="chat")
    for _ in range(2):
        assert await within(runs.work_until_idle()) == 1
        outcomes = [(await runs.retry(run_id, "it is back")).outcome for _ in range(2)]
        assert outcomes == ["due", "open"]
        state = await runs.status(run_id)
        assert (state.status, state.attempts, state.next_attempt_at) == ("due", 0, None)
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).output == "done"
    expected = [*["run.retrying", "run.retried"] * 2, "run.completed"]
    assert [name for name, _ in await events_of(runs, run_id)] == expected


@pytest.mark.parametrize("kind", ["timeout", "rate_limited", "unavailable"])
async def test_a_run_fails_after_its_attempts(location: Location, store: RunStore, kind: Any) -> None:
    """Five passes in a row may fail; the last error is that of the run."""
    model = ScriptedModel(*[ModelError("m", "down", error_kind=kind)] * 5)
    agent = Agent("a", model=model)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    state = await worked(runs, run_id, location)
    assert (state.status, state.attempts, len(model.requests)) == ("failed", 5, 5)
    assert state.error == state.last_error
    assert [name for name, _ in await events_of(runs, run_id)] == [*["run.retrying"] * 4, "run.failed"]


async def test_progress_counts_attempts_anew(location: Location, store: RunStore) -> None:
    """A run whose every step needs two attempts completes, although more passes fail than may in a row."""
    steps = [item for n in range(4) for item in (DOWN, ToolCall("do", {}, f"c{n}"))]
    agent = Agent("a", model=ScriptedModel(*steps, "done"), tools=[DO])
    runs = DurableRuns(store, [agent], retry=RetryPolicy(max_attempts=2))
    run_id = await runs.submit(agent, "go")
    state = await worked(runs, run_id, location)
    assert (state.status, state.attempts) == ("completed", 1)
    retrying = [data["attempt"] for name, data in await events_of(runs, run_id) if name == "run.retrying"]
    assert retrying == [1] * 4


async def test_a_run_fails_after_its_time(location: Location, store: RunStore) -> None:
    """An attempt that could only start too long after the first failure is not made."""
    model = ScriptedModel(DOWN, DOWN, DOWN)
    agent = Agent("a", model=model)
    runs = DurableRuns(store, [agent], retry=RetryPolicy(max_elapsed=1000, jitter=lambda: 1.0))
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    location.execute("UPDATE retries SET since = since - 995")
    state = await worked(runs, run_id, location)
    assert (state.status, state.attempts) == ("failed", 2)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("bad option"),
        OutputError("m", "no JSON", text=""),
        ModelError("m", "no key", error_type="401", error_kind="auth"),
        ModelError("m", "too long", error_kind="invalid_request"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_that_does_not_pass_fails_at_once(store: RunStore, error: Exception) -> None:
    """A bad option, a decision of the policy, a refused request: another pass would meet it again."""
    agent = Agent("a", model=ScriptedModel(error))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.attempts, state.last_error) == ("failed", 1, state.error)
    assert [name for name, _ in await events_of(runs, run_id)] == ["run.failed"]


async def test_what_an_agent_may_not_do_fails_at_once(store: RunStore) -> None:
    """A run that the permission policy ends stays ended."""
    agent = Agent("a", model=ScriptedModel(ToolCall("do", {}, "c")), tools=[DO], policy=halting)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    assert ((state := await runs.status(run_id)).status, state.error_type) == ("failed", "policy_halt")


async def test_an_unknown_error_is_retried_once(location: Location, store: RunStore) -> None:
    """The run fails if the next pass fails alike, and goes on if it fails otherwise."""
    model = ScriptedModel(KeyError("x"), ValueError("y"), KeyError("x"), KeyError("x"))
    agent = Agent("a", model=model)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    state = await worked(runs, run_id, location)
    assert (state.status, state.error_type, state.attempts) == ("failed", "KeyError", 4)


async def test_without_a_policy_the_first_error_ends_the_run(store: RunStore) -> None:
    """`retry=None` is as it was."""
    agent = Agent("a", model=ScriptedModel(DOWN))
    runs = DurableRuns(store, [agent], retry=None)
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).status == "failed"


async def test_a_run_that_retries_is_cancelled_at_once(location: Location, store: RunStore) -> None:
    """No worker has it, so nobody has to be asked."""
    agent = Agent("a", model=ScriptedModel(DOWN))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    assert (await runs.cancel(run_id, "enough")).outcome == "cancelled"
    is_due(location)
    assert await within(runs.work_until_idle()) == 0
    assert (await runs.status(run_id)).status == "cancelled"


async def test_a_run_that_was_cancelled_when_its_pass_failed_is_not_retried(store: RunStore) -> None:
    """The cancellation counts, whatever the pass has met; the next worker ends the run at once."""
    claim = await claimed(store)
    assert (await store.cancel("run", "enough")).outcome == "requested"
    await store.retry_later(claim, FailedPass(1, "503", "down"), delay=1000)
    run = await store.run("run")
    assert run is not None
    assert (run.status, run.failures) == ("due", None)
    again = await store.claim("worker", ["agent"], 60)
    assert again is not None
    assert again.run.cancel_reason == "enough"


async def test_a_claim_that_was_lost_retries_nothing(location: Location, store: RunStore) -> None:
    """A worker whose lease has expired does not give back the claim of another one."""
    claim = await claimed(store)
    location.end_leases()
    assert await store.claim("other", ["agent"], 60) is not None
    with pytest.raises(Fenced):
        await store.retry_later(claim, FailedPass(1, "503", "down"), delay=10)
    run = await store.run("run")
    assert run is not None
    assert (run.status, run.failures) == ("running", None)


@pytest.mark.parametrize(("seconds", "expected"), [(0, 2.0), (1, 2.0), (3, 3.0), (400, None)])
def test_a_run_waits_as_long_as_the_error_asks_for(seconds: float, expected: float | None) -> None:
    """`Retry-After` is a minimum; a wait that is longer than the time that is left is not begun."""
    policy = RetryPolicy(backoff=2.0, max_elapsed=300, jitter=lambda: 1.0)
    error = ModelError("m", "slow down", error_kind="rate_limited", retry_after=seconds)
    assert policy.delay(error, Streak()) == expected


def test_the_wait_grows_and_is_a_random_part() -> None:
    """It grows by the factor up to its maximum, also after more attempts than a number can hold."""
    policy = RetryPolicy(max_attempts=10**6, backoff=1.0, factor=4.0, max_backoff=50.0, jitter=lambda: 0.5)
    waits = [policy.delay(DOWN, Streak(attempts, 1.0, "503")) for attempts in (0, 1, 2, 3, 4, 10**5)]
    assert waits == [0.5, 2.0, 8.0, 25.0, 25.0, 25.0]
    assert policy.delay(ModelTimeout("m", "slow"), Streak()) == 0.5
    assert policy.delay(CircuitOpen("m", 7.0), Streak()) == 7.0


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_elapsed": -1}, {"backoff": math.nan}, {"factor": 0.5}, {"max_backoff": math.inf}],
    ids=str,
)
def test_a_policy_is_checked(options: dict[str, Any]) -> None:
    """A number out of its range is refused by its name."""
    [name] = options
    with pytest.raises(ConfigError, match=name):
        RetryPolicy(**options)


# Runs that have ended


async def test_a_failed_run_is_continued(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on from its journal with the same keys, and attempts are counted anew."""
    keys: list[str] = []

    async def pay(arguments: Any, ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    refused = ModelError("m", "no key", error_type="401", error_kind="auth")
    model = ScriptedModel(ToolCall("pay", {}, "c"), refused, "done")
    agent = Agent("a", model=model, tools=[Tool(name="pay", run=pay)])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go", idempotency_key="k")
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).status == "failed"
    assert await runs.submit(agent, "go", idempotency_key="k") == run_id
    [line] = [record.getMessage() for record in caplog.records if "ended_before" in record.getMessage()]
    assert f"runs.retry({run_id!r})" in line
    retry = await runs.retry(run_id, "the key is there now")
    assert retry.outcome == "due"
    assert retry.run is not None
    state = await runs.status(run_id)
    assert (state.status, state.attempts, state.error, state.last_error_type) == ("due", 0, None, "401")
    assert (await runs.retry(run_id)).outcome == "open"
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output, len(keys)) == ("completed", "done", 1)
    assert (await runs.retry(run_id)).outcome == "completed"
    assert (await runs.retry("none")).outcome == "unknown"
    expected = ["run.failed", "run.retried", "run.completed"]
    assert [name for name, _ in await events_of(runs, run_id)] == expected
    assert ("run.retried", {"reason": "the key is there now"}) in await events_of(runs, run_id)


async def test_a_cancelled_run_is_continued(store: RunStore) -> None:
    """The model reads of the calls that were cancelled with it that they were; it owes nobody anything."""
    model = ScriptedModel([ToolCall("owed", {}, "c1"), ToolCall("pay", {}, "c2"), ToolCall("do", {}, "c3")], "done")
    agent = Agent("a", model=model, tools=[OWED, PAY, DO])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    await runs.cancel(run_id, "by mistake")
    assert (await runs.retry(run_id)).outcome == "due"
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output, state.error) == ("completed", "done", None)
    answers = results(state)
    assert answers["c3"] == "c3 done"
    assert "cancelled" in answers["c1"]
    assert answers["c2"].startswith("Not run: ")


async def test_a_run_that_was_given_up_is_continued(location: Location, store: RunStore) -> None:
    """Its expired leases are counted anew: it is not given up with the next one."""
    agent = Agent("a", model=ScriptedModel("done"))
    runs = DurableRuns(store, [agent], max_expired_leases=1)
    run_id = await runs.submit(agent, "go")
    for _ in range(3):
        assert await store.claim("killed", ["a"], 60) is not None
        location.end_leases()
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).error_type == "given_up"
    assert (await runs.retry(run_id)).outcome == "due"
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).output == "done"


async def test_a_run_of_a_conversation_is_continued_unless_another_is_open(store: RunStore) -> None:
    """One run of a conversation at a time: the retry is refused, and allowed once the other one has ended."""
    refused = ModelError("m", "no key", error_type="401", error_kind="auth")
    model = ScriptedModel(refused, "two", "one", "three")
    runs = DurableRuns(store, [Agent("a", model=model)])
    first = await runs.submit("a", "x", conversation_id="c")
    await within(runs.work_until_idle())
    second = await runs.submit("a", "y", conversation_id="c")
    with pytest.raises(ConversationBusy) as raised:
        await runs.retry(first)
    assert raised.value.run_id == second
    assert (await runs.status(first)).status == "failed"
    await within(runs.work_until_idle())
    assert (await runs.retry(first)).outcome == "due"
    with pytest.raises(ConversationBusy):
        await runs.submit("a", "z", conversation_id="c")
    await within(runs.work_until_idle())
    assert (await runs.status(first)).output == "one"
    third = await runs.submit("a", "z", conversation_id="c")
    await within(runs.work_until_idle())
    assert (await runs.status(third)).output == "three"


async def test_a_conversation_tells_that_its_run_retries(store: RunStore) -> None:
    """Its page and its open run have the status of the run, which others wait for."""
    runs = DurableRuns(store, [Agent("a", model=ScriptedModel(DOWN, "one", "two"))], conversations="queue")
    first = await runs.submit("a", "x", conversation_id="c")
    await within(runs.work_until_idle())
    second = await runs.submit("a", "y", conversation_id="c")
    page = await runs.conversation("c")
    assert [(run.run_id, run.status) for run in page.runs] == [(first, "retrying"), (second, "queued")]
    assert page.runs[0].attempts == 1
    assert page.open_run is not None
    assert (page.open_run.run_id, page.open_run.status) == (first, "retrying")


async def test_two_retries_at_once_are_one(store: RunStore) -> None:
    """The second one finds the run open."""
    claim = await claimed(store)
    await store.finish(claim, "failed", {"error": "x", "error_type": "x"})
    outcomes: list[str] = []

    async def retry() -> None:
        outcomes.append((await store.retry("run", [{"type": "run.retried"}])).outcome)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(retry)
    assert sorted(outcomes) == ["due", *["open"] * 7]


async def test_purge_deletes_what_is_known_of_failures(location: Location, store: RunStore) -> None:
    """Nothing of the run is left, and its id starts anew."""
    agent = Agent("a", model=ScriptedModel(DOWN, "done"))
    runs = DurableRuns(store, [agent], retry=None)
    await runs.submit(agent, "go", run_id="r")
    await within(runs.work_until_idle())
    assert (await runs.status("r")).attempts == 1
    assert await store.purge(0) == 1
    await runs.submit(agent, "go", run_id="r")
    assert (await runs.status("r")).attempts == 0


async def test_retries_are_counted_and_each_pass_has_a_span(location: Location, store: RunStore) -> None:
    """The counter tells agent and error; the passes are in one trace."""
    agent = Agent("a", model=ScriptedModel(DOWN, DOWN, "done"))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with capture(fixed=False) as telemetry:
        state = await worked(runs, run_id, location)
        assert telemetry.value(semconv.DURABLE_RETRIES, **{semconv.ERROR_TYPE: "503"}) == 2
        assert telemetry.value(semconv.DURABLE_PASSES, **{semconv.DURABLE_PASS: "retrying"}) == 2
    assert state.status == "completed"
    spans = telemetry.find("invoke_agent a")
    assert [(span.attributes or {}).get(semconv.OUTCOME) for span in spans] == ["failed", "failed", "completed"]
    assert len({span.context.trace_id for span in spans}) == 1


async def test_a_wait_is_recorded_once(location: Location, store: RunStore) -> None:
    """A pass that fails after it has taken a result has recorded the wait for it: those that retry it do not again."""
    agent = Agent("a", model=ScriptedModel(ToolCall("owed", {}, "c"), DOWN, DOWN, "done"), tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with capture(fixed=False) as telemetry:
        await within(runs.work_until_idle())
        [call] = (await runs.status(run_id)).external
        await runs.settle(call.id, output="paid")
        state = await worked(runs, run_id, location)
        assert (state.status, results(state)) == ("completed", {"c": "paid"})
        assert telemetry.value(semconv.EXTERNAL_PENDING) == 0
    assert len(telemetry.find("await_tool owed")) == 1


async def test_the_age_of_what_retries_is_a_gauge(store: RunStore) -> None:
    """Workers report for how long the passes of a run have failed, by agent; 0 where none has."""
    agents = [Agent("a", model=ScriptedModel(DOWN)), Agent("b", model=ScriptedModel("done"))]
    runs = DurableRuns(store, agents, poll=0.01, retry=RetryPolicy(backoff=3600.0, jitter=lambda: 0.9))
    run_id = await runs.submit("a", "go")
    with capture(fixed=False) as telemetry:
        await within(runs.work_until_idle())
        assert (await runs.status(run_id)).status == "retrying"
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runs.work)
                name = semconv.DURABLE_RETRYING_AGE.name
                while all(point.name != name for point in telemetry.metrics):  # noqa: ASYNC110  (nobody is notified)
                    await anyio.sleep(0.01)
                ages = {name: telemetry.value(semconv.DURABLE_RETRYING_AGE, gen_ai_agent_name=name) for name in "ab"}
                tasks.cancel_scope.cancel()
    assert ages["a"] > 0
    assert ages["b"] == 0
