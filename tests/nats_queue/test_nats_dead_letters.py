"""Messages that are moved to the dead letters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, semconv
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import FunctionModel
from pellucid_exporters.testing import capture
from support.nats_server import Admin
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pellucid.durable import NATSQueue, RunStore
    from support.nats_server import NATSServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

EXPIRED = 0.0
"""A lease that is over at once."""


async def dead(admin: Admin, prefix: str, number: int) -> list[Any]:
    """Wait for dead letters, and return them."""
    while (await admin.call("STREAM.INFO", f"{prefix}_dead"))["state"]["messages"] < number:  # noqa: ASYNC110  (a server)
        await anyio.sleep(0.01)
    return await admin.messages(f"{prefix}_dead")


async def test_invalid_messages(store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str) -> None:
    """A message that names no run of its agent goes to the dead letters, as it is; runs continue."""
    bodies = [b"\xff", b"[]", b'{"run_id": "x", "agent": "b"}', b'{"run_id": "\\n", "agent": "a"}', b"[" * 100_000]
    agent = Agent("a", model=FunctionModel(lambda request: "hello"))
    runs = DurableRuns(store, [agent], queue=queue)
    with capture() as telemetry, anyio.fail_after(PATIENCE):
        async with Admin(nats.url) as admin, anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work)
            run_id = await runs.submit(agent, "go")
            while not (await runs.status(run_id)).is_over:  # noqa: ASYNC110  (another task)
                await anyio.sleep(0.01)
            for body in bodies:
                await admin.publish(f"{prefix}.work.a", body, {"Traceparent": "00-1-2-01"})
            letters = await dead(admin, prefix, len(bodies))
            tasks.cancel_scope.cancel()
    assert [letter.data for letter in letters] == bodies
    for letter in letters:
        assert letter.subject == f"{prefix}.dead.a"
        assert letter.headers == {
            "Traceparent": "00-1-2-01",
            "Pellucid-Reason": "invalid",
            "Pellucid-Deliveries": "1",
            "Pellucid-Subject": f"{prefix}.work.a",
        }
    labels = {semconv.AGENT_NAME: "a", semconv.QUEUE_REASON: "invalid"}
    assert telemetry.value(semconv.QUEUE_DEAD_LETTERED, **labels) == len(bodies)


async def test_delivered_too_often(
    store: RunStore, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str
) -> None:
    """A message that its workers gave back too often goes to the dead letters, with the number of deliveries."""
    async with make_queue(max_deliveries=3) as queue, Admin(nats.url) as admin:
        await DurableRuns(store, [], queue=queue).submit("a", "go", run_id="poison")
        with anyio.fail_after(PATIENCE):
            for _ in range(3):
                delivery = await queue.receive(["a"], PATIENCE)
                assert delivery is not None
                assert (delivery.run_id, delivery.agent) == ("poison", "a")
                delivery.give_back()
            assert await queue.receive(["a"], 1.0) is None
            [letter] = await dead(admin, prefix, 1)
            assert (await admin.call("STREAM.INFO", f"{prefix}_work"))["state"]["messages"] == 0
    assert json.loads(letter.data) == {"run_id": "poison", "agent": "a", "fence": 0}
    assert (letter.headers["Pellucid-Reason"], letter.headers["Pellucid-Deliveries"]) == ("undeliverable", "4")


async def test_given_up(store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str, tmp_path: Path) -> None:
    """The message of a run that the store gives up, because it ends its workers, is a dead letter, too."""
    agent = Agent("a", model=FunctionModel(lambda request: "hello"))
    runs = DurableRuns(store, [agent], queue=queue, max_expired_leases=1, poll=600.0)
    with anyio.fail_after(PATIENCE):
        async with (
            Admin(nats.url) as admin,
            open_store(f"sqlite:///{tmp_path}/runs.db") as silent,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(runs.work)
            while await admin.waiting(f"{prefix}_work", "a") < 1:  # noqa: ASYNC110  (another thread)
                await anyio.sleep(0.01)
            await silent.submit("poison", "a", None)
            for _ in range(3):
                assert await silent.claim("worker that ends", ["a"], EXPIRED) is not None
            assert (await runs.recover()).run_ids == ("poison",)
            [letter] = await dead(admin, prefix, 1)
            tasks.cancel_scope.cancel()
    assert letter.headers["Pellucid-Reason"] == "given_up"
    assert json.loads(letter.data)["run_id"] == "poison"
    assert (await runs.status("poison")).error_type == "given_up"
