"""Callbacks: the states in which runs wait or have ended, delivered to a URL."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry.trace import SpanKind
from standardwebhooks.webhooks import Webhook

from pellucid import Agent, ToolCall, semconv
from pellucid.durable import Callbacks, DurableRuns, verify_callback
from pellucid.durable.states.bodies import state_json
from pellucid.errors import CallbackRefused, ConfigError, IdempotencyConflict
from pellucid.testing import FunctionModel, ScriptedModel
from support.durable_agents import OWED, PAY
from support.ports import free_port
from support.processes import run_python
from support.receiver import receiver
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.receiver import Receiver
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

OLD, NEW = (f"whsec_{base64.b64encode(letter * 32).decode()}" for letter in (b"o", b"n"))
SECRET = "t0psecret"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """Return a receiver that listens."""
    with receiver() as receiving:
        yield receiving


def callbacks(url: str, *keys: str, **options: Any) -> Callbacks:
    """Return callbacks that are tried again at once."""
    return Callbacks(keys or [NEW], [url], **{"first_delay": 0.001, "max_delay": 0.001, **options})


def waits() -> Agent:
    """Return an agent that waits for another process."""
    return Agent("a", model=ScriptedModel(ToolCall("owed"), "end"), tools=[OWED])


async def submitted(runs: DurableRuns, url: str, agent: str = "a") -> str:
    """Submit a run with a callback, and work until it waits or has ended."""
    run_id = await runs.submit(agent, "go", callback=url)
    await within(runs.work_until_idle())
    return run_id


async def settle(runs: DurableRuns, run_id: str) -> None:
    """Return the result that a run waits for, and work until it has ended."""
    for call in (await runs.status(run_id)).external:
        await runs.settle(call.id, output=1)
    await within(runs.work_until_idle())


async def deliver_all(runs: DurableRuns, store: RunStore, run_id: str) -> None:
    """Deliver until there is nothing to deliver to the run's URL."""
    with anyio.fail_after(60):
        while (callback := await store.callback(run_id)) and callback.next_at is not None:
            if not await runs.deliver_callbacks():
                await store.wait_for_callbacks(60)


def statuses(hook: Receiver) -> list[tuple[int, str]]:
    """Return versions and statuses that were received."""
    return [(message.state["version"], message.state["status"]) for message in hook.received]


async def test_each_pause_and_the_end_are_delivered_and_signed(store: RunStore, hook: Receiver) -> None:
    """The body is the state of the run; while keys rotate it is signed by both, as the reference library verifies."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url, NEW, OLD))
    run_id = await submitted(runs, f"{hook.url}/a?b=c")
    waiting = state_json(await runs.status(run_id))
    assert await within(runs.deliver_callbacks()) == 1
    await settle(runs, run_id)
    assert await within(runs.deliver_callbacks()) == 1
    assert await within(runs.deliver_callbacks()) == 0
    first, second = hook.received
    assert first.path == "/hooks/a?b=c"
    assert first.headers["content-type"] == "application/json"
    assert first.state == {**waiting, "version": 1}
    assert waiting["external"][0]["toolName"] == "owed"
    assert second.state == {**state_json(await runs.status(run_id)), "version": 2}
    assert second.state["output"] == "end"
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    for key in (OLD, NEW):
        assert Webhook(key).verify(first.body, dict(first.headers)) == first.state
        assert verify_callback(first.body, first.headers, key) == first.state


async def test_other_ends(store: RunStore, hook: Receiver) -> None:
    """A run that fails, waits for an approval or is cancelled says so; one without a URL calls nobody."""

    def fail(_request: Any) -> str:
        raise ZeroDivisionError

    agents = [
        Agent("fails", model=FunctionModel(fail)),
        Agent("pays", model=ScriptedModel(ToolCall("pay"), "end"), tools=[PAY]),
    ]
    runs = DurableRuns(store, agents, callbacks=callbacks(hook.url), retry=None)
    await runs.submit("fails", "go")
    await submitted(runs, hook.url, "fails")
    run_id = await submitted(runs, hook.url, "pays")
    await within(runs.deliver_callbacks())
    await runs.cancel(run_id, "no")
    await within(runs.deliver_callbacks())
    assert sorted(statuses(hook)) == [(1, "awaiting_approval"), (1, "failed"), (2, "cancelled")]


async def test_a_receiver_that_was_away_gets_the_latest_state(store: RunStore) -> None:
    """Attempts are repeated; a newer state takes the place of an older one; nothing is lost when nobody listens."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/hooks"
    runs = DurableRuns(store, [waits()], callbacks=callbacks(url))
    run_id = await submitted(runs, url)
    await within(runs.deliver_callbacks())
    first = await store.callback(run_id)
    assert first is not None
    assert (first.version, first.delivered_version, first.last_error) == (
        1,
        0,
        "the message could not be sent: httpx2.ConnectError",
    )
    await settle(runs, run_id)
    with receiver(port) as hook:
        await deliver_all(runs, store, run_id)
        assert statuses(hook) == [(2, "completed")]


async def test_one_state_at_a_time(store: RunStore, hook: Receiver) -> None:
    """While a slow receiver has one state, a newer one waits, so that it cannot come first."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url))
    run_id = await submitted(runs, hook.url)
    hook.is_open.clear()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.deliver_callbacks)
            while not hook.received:  # noqa: ASYNC110  (a thread receives)
                await anyio.sleep(0.01)
            await settle(runs, run_id)
            assert await runs.deliver_callbacks() == 0
            hook.is_open.set()
    assert statuses(hook) == [(1, "awaiting_tools"), (2, "completed")]


async def test_a_worker_that_is_stopped_gives_its_state_back(store: RunStore, hook: Receiver) -> None:
    """Another one delivers it at once, with the same id."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url))
    await submitted(runs, hook.url)
    hook.is_open.clear()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work)
            while not hook.received:  # noqa: ASYNC110  (a thread receives)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        hook.is_open.set()
        assert await runs.deliver_callbacks() == 1
    first, second = hook.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_two_workers(location: Location, hook: Receiver, anyio_backend: str) -> None:
    """Each state is delivered by one of them."""
    async with location.open() as one, location.open() as other:
        agent = Agent("a", model=FunctionModel(lambda _: "Hello."))
        workers = [DurableRuns(store, [agent], callbacks=callbacks(hook.url)) for store in (one, other)]
        run_ids = [await workers[0].submit("a", "go", callback=hook.url) for _ in range(12)]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for runs in workers:
                    tasks.start_soon(runs.work)
                while len(hook.received) < len(run_ids):  # noqa: ASYNC110  (a thread receives)
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        assert sorted(message.state["id"] for message in hook.received) == sorted(run_ids)


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (307, {"Location": "/hooks/elsewhere"}, "the receiver answered 307"),
        (404, {}, "the receiver answered 404"),
        (503, {}, "the receiver answered 503"),
    ],
)
async def test_any_other_answer_is_repeated(
    store: RunStore, hook: Receiver, status: int, headers: dict[str, str], error: str
) -> None:
    """Also a redirect, which is not followed; the message keeps its id."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url, max_delay=60, first_delay=60))
    hook.answers.append((status, headers))
    run_id = await submitted(runs, hook.url)
    assert await within(runs.deliver_callbacks()) == 1
    callback = await store.callback(run_id)
    assert callback is not None
    assert callback.last_error == error
    assert callback.next_at is not None
    assert await runs.retry_callback(run_id)
    await within(runs.deliver_callbacks())
    first, second = hook.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert {first.path, second.path} == {"/hooks"}
    assert not await runs.retry_callback(run_id)


async def test_retry_after(store: RunStore, hook: Receiver) -> None:
    """A receiver that is busy is left alone for as long as it says, though not beyond the end of the attempts."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url, give_up_after=2000))
    for asked, least, most in (("1000", 1000, 1100), ("999999", 1900, 2000)):
        hook.answers.append((503, {"Retry-After": asked}))
        run_id = await submitted(runs, hook.url)
        [run] = [run for run in (await store.list_runs()).runs if run.run_id == run_id]
        await within(runs.deliver_callbacks())
        callback = await store.callback(run_id)
        assert callback is not None
        assert callback.next_at is not None
        assert least <= callback.next_at - run.updated_at <= most + 100


async def test_a_receiver_that_never_answers(store: RunStore, hook: Receiver) -> None:
    """An attempt ends after the timeout."""
    hook.is_open.clear()
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url, timeout=0.2, first_delay=60, max_delay=60))
    run_id = await submitted(runs, hook.url)
    assert await within(runs.deliver_callbacks()) == 1
    callback = await store.callback(run_id)
    assert callback is not None
    assert callback.last_error == "the receiver did not answer within 0.2 s"


@pytest.mark.parametrize(("status", "options"), [(410, {}), (500, {"give_up_after": 1e-9})], ids=["gone", "day"])
async def test_a_state_is_given_up(
    store: RunStore, hook: Receiver, telemetry: Captured, status: int, options: dict[str, Any]
) -> None:
    """At once if the receiver is gone, else after a day: the run says so, and an operator can try it again."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url, **options))
    hook.answers.append((status, {}))
    run_id = await submitted(runs, f"{hook.url}?token={SECRET}")
    await deliver_all(runs, store, run_id)
    [dead] = await runs.dead_callbacks()
    assert (dead.run_id, dead.last_error, SECRET in repr(dead)) == (run_id, f"the receiver answered {status}", False)
    page = await runs.event_page(run_id)
    assert (page.events[-1].type, page.events[-1].data) == ("callback.dead", {"version": 1, "attempts": 1})
    assert await runs.retry_callback(run_id)
    await deliver_all(runs, store, run_id)
    assert await runs.dead_callbacks() == ()
    assert statuses(hook) == [(1, "awaiting_tools")] * 2
    outcomes = {
        point.attributes[semconv.DURABLE_CALLBACK]: point.value
        for point in telemetry.metrics
        if point.name == semconv.DURABLE_CALLBACKS.name
    }
    assert outcomes == {"dead": 1, "delivered": 1}


async def test_a_new_state_of_a_dead_callback_is_delivered(store: RunStore, hook: Receiver) -> None:
    """The receiver may be back."""
    runs = DurableRuns(store, [waits()], callbacks=callbacks(hook.url))
    hook.answers.append((410, {}))
    run_id = await submitted(runs, hook.url)
    await within(runs.deliver_callbacks())
    await settle(runs, run_id)
    await within(runs.deliver_callbacks())
    assert statuses(hook) == [(1, "awaiting_tools"), (2, "completed")]


async def test_an_attempt_is_a_span_of_the_run(
    store: RunStore, hook: Receiver, telemetry: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    """With the status; neither it nor the log has the URL's path and query, which may be secret."""
    caplog.set_level(logging.DEBUG)
    agent = Agent("a", model=ScriptedModel("end"))
    runs = DurableRuns(store, [agent], callbacks=callbacks(hook.url))
    hook.answers.append((500, {}))
    run_id = await submitted(runs, f"{hook.url}/{SECRET}?{SECRET}")
    await deliver_all(runs, store, run_id)
    failed, delivered = [span for span in telemetry.spans if span.kind is SpanKind.CLIENT and span.name == "POST"]
    [run] = telemetry.find("invoke_agent a")
    assert failed.parent is not None
    assert run.context is not None
    assert failed.parent.trace_id == run.context.trace_id
    port = int(hook.url.split(":")[2].split("/")[0])
    common = {
        semconv.HTTP_REQUEST_METHOD: "POST",
        semconv.DURABLE_RUN_ID: run_id,
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: port,
    }
    assert failed.attributes == {**common, semconv.HTTP_RESPONSE_STATUS_CODE: 500, semconv.ERROR_TYPE: "500"}
    assert delivered.attributes == {
        **common,
        semconv.HTTP_RESPONSE_STATUS_CODE: 204,
        semconv.HTTP_RESEND_COUNT: 1,
    }
    assert f"{run.context.trace_id:032x}" in hook.received[0].headers["traceparent"]
    assert f"callback.failed run_id={run_id} attempt=1: the receiver answered 500" in caplog.text
    assert SECRET not in caplog.text
    assert hook.received[0].path == f"/hooks/{SECRET}?{SECRET}"
    assert NEW not in caplog.text


async def test_a_worker_without_the_prefix_calls_nobody(store: RunStore, hook: Receiver) -> None:
    """The URL is checked again before each attempt: the operator may have changed what is allowed."""
    await submitted(DurableRuns(store, [waits()], callbacks=callbacks(hook.url)), hook.url)
    other = DurableRuns(store, [], callbacks=callbacks("https://example.org", first_delay=60, max_delay=60))
    assert await within(other.deliver_callbacks()) == 1
    assert hook.received == []


async def test_the_same_key_with_another_callback(store: RunStore) -> None:
    """It is another submission, and refused."""
    runs = DurableRuns(store, [], callbacks=callbacks("https://example.org"))
    first = await runs.submit("a", "go", idempotency_key="k", callback="https://example.org/a")
    assert first == await runs.submit("a", "go", idempotency_key="k", callback="https://example.org/a")
    with pytest.raises(IdempotencyConflict):
        await runs.submit("a", "go", idempotency_key="k", callback="https://example.org/b")


async def test_without_callbacks(store: RunStore) -> None:
    """A process that delivers none accepts none."""
    runs = DurableRuns(store, [])
    with pytest.raises(CallbackRefused, match="this server delivers none"):
        await runs.submit("a", "go", callback="https://example.org/a")
    with pytest.raises(ConfigError, match="deliver_callbacks needs"):
        await runs.deliver_callbacks()
    assert (await store.list_runs()).runs == ()


KILLED = """
import json, os, sys

import anyio

from pellucid import Agent
from pellucid.durable import open_store
from pellucid.durable import Callbacks, DurableRuns
from pellucid.testing import ScriptedModel

url, options, hook, key = sys.argv[1:]


async def die(claim):
    os._exit(0)


async def main():
    async with open_store(url, **json.loads(options)) as store:
        store.callback_delivered = die
        runs = DurableRuns(store, [Agent("a", model=ScriptedModel("end"))], callbacks=Callbacks([key], [hook]))
        await runs.submit("a", "go", callback=hook, run_id="run")
        await runs.work_until_idle()
        await runs.deliver_callbacks()


anyio.run(main)
"""


def test_a_worker_that_dies_after_the_delivery(location: Location, hook: Receiver) -> None:
    """Its state is delivered again after its lease, with the same id."""
    run_python(KILLED, *location.arguments, hook.url, NEW)

    async def deliver() -> None:
        async with location.open() as store:
            runs = DurableRuns(store, [], callbacks=callbacks(hook.url))
            assert await runs.deliver_callbacks() == 0
            location.execute("UPDATE callbacks SET lease_until = lease_until - 1000")
            assert await runs.deliver_callbacks() == 1

    anyio.run(deliver)
    first, second = hook.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
