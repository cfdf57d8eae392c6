"""Timelines of durable runs: claims, waits, calls and retries, each with what the store knows of its end."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2 as httpx
import pytest

from pellucid import Agent, Decision, ModelError, ToolCall
from pellucid.durable import DurableRuns, RetryPolicy
from pellucid.testing import FunctionModel
from pellucid_exporters.stored.nothing import NoTelemetry
from pellucid_exporters.viewer import create_viewer_app
from pellucid_exporters.viewer.durable import DurablePages
from support.durable_agents import DO, OWED, PAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest
    from pellucid.durable import Claim, RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ROW = re.compile(r'<tr class="(\w+)"><th scope="row">(.*?)</th>.*?<td class="n">(.*?)</td><td class="quiet">(.*?)</td>')
INTERRUPTED = "interrupted; its end is not known"


class Row(NamedTuple):
    """A row of a timeline."""

    kind: str
    label: str
    length: str
    note: str


def act(request: ModelRequest) -> Any:
    """Call the tool that the run names, once, fail, or answer."""
    text = request.messages[0].text
    if text == "overloaded":
        raise ModelError("m", "overloaded", error_kind="unavailable")
    return [ToolCall(text, {}, "c1")] if text in ("do", "owed", "pay") and len(request.messages) == 1 else "done"


AGENT = Agent("clerk", model=FunctionModel(act), tools=[DO, OWED, PAY])


@asynccontextmanager
async def pages(store: RunStore) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the pages of a store."""
    durable = DurablePages(store, DurableRuns(store, []))
    transport = httpx.ASGITransport(create_viewer_app(NoTelemetry(), durable=durable))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        yield http


async def timeline(store: RunStore, run_id: str) -> list[Row]:
    """Return the rows of the timeline on the page of a run."""
    async with pages(store) as http:
        answer = await http.get(f"/durable/runs/{run_id}/")
    assert answer.status_code == 200, answer.text
    return [Row(*found) for found in ROW.findall(answer.text)]


async def claims(store: RunStore, run_id: str) -> list[tuple[str, str]]:
    """Return the labels and notes of the claims in a timeline."""
    return [(row.label, row.note) for row in await timeline(store, run_id) if row.kind == "pass"]


async def claimed(store: RunStore, *, is_traced: bool = False) -> Claim:
    """Claim the run that is due, and begin its pass; one that is traced notes that."""
    claim = await store.claim("host:1", ["clerk"], 60)
    assert claim is not None
    if is_traced:
        await store.note(claim, f"begun:r:{claim.run.fence}", {"step": "begun"})
    return claim


def shift(location: Location, seconds: float) -> None:
    """Move all that has happened into the past."""
    location.execute(f"UPDATE journal SET created_at = created_at - {seconds}")
    location.execute(f"UPDATE events SET created_at = created_at - {seconds}")
    location.execute(
        f"UPDATE calls SET created_at = created_at - {seconds}, dispatched_at = dispatched_at - {seconds}, "
        f"settled_at = settled_at - {seconds}"
    )
    location.execute(
        f"UPDATE runs SET created_at = created_at - {seconds}, updated_at = updated_at - {seconds}, "
        f"due_at = due_at - {seconds}, lease_until = lease_until - {seconds}"
    )


async def test_a_run_without_tool_calls(store: RunStore) -> None:
    """A claim whose steps are answers alone has a bar, and nothing waits for a worker once it has ended."""
    runs = DurableRuns(store, [AGENT])
    run_id = await runs.submit(AGENT, "hello")
    [row] = await timeline(store, run_id)
    assert (row.kind, row.label, row.length[:4]) == ("queued", "waited for a worker", "for ")
    await runs.work_until_idle()
    [row] = await timeline(store, run_id)
    assert (row.kind, row.label, row.note) == ("pass", "claim 1 and the wait for it", "completed")
    assert not row.length.startswith("for ")


async def test_a_run_that_is_held(store: RunStore, location: Location) -> None:
    """A claim that holds the run is running, also before its first step, until its lease has expired."""
    run_id = await DurableRuns(store, [AGENT]).submit(AGENT, "hello")
    claim = await claimed(store)
    [row] = await timeline(store, run_id)
    assert (row.label, row.length[:4], row.note) == ("claim 1 and the wait for it", "for ", "running")
    await store.note(claim, "begun:r:1", {"step": "begun"})
    waited, held = await timeline(store, run_id)
    assert (waited.label, held.label, held.note) == ("waited for a worker", "claim 1", "running")
    location.end_leases()
    row = (await timeline(store, run_id))[1]
    assert (row.note, row.length.startswith("for ")) == ("its lease has expired", False)


async def test_a_worker_that_was_killed(store: RunStore, location: Location) -> None:
    """Its claim ends with its last step, and the claim of the next worker is another bar, with a gap in between."""
    run_id = await DurableRuns(store, [AGENT]).submit(AGENT, "hello")
    claim = await claimed(store, is_traced=True)
    await store.append(claim, "answer:1", {"step": "answer"}, [{"type": "step.answer"}])
    shift(location, 120)
    location.end_leases()
    claim = await claimed(store, is_traced=True)
    await store.end_pass(claim, events=[{"type": "run.waiting"}])
    assert await claims(store, run_id) == [("claim 1", INTERRUPTED), ("claim 2", "waiting")]
    assert "min" not in "".join(row.length for row in await timeline(store, run_id))


async def test_a_run_that_is_cancelled_while_it_waits(store: RunStore, location: Location) -> None:
    """The claim has ended when the run began to wait; the cancellation belongs to none."""
    runs = DurableRuns(store, [AGENT])
    run_id = await runs.submit(AGENT, "owed")
    await runs.work_until_idle()
    shift(location, 7200)
    await runs.cancel(run_id, "not needed")
    claim, call = await timeline(store, run_id)
    assert (claim.label, claim.note) == ("claim 1 and the wait for it", "waiting")
    assert (call.label, call.note, call.length) == ("owed", "cancelled", "2 h")
    assert "h" not in claim.length


async def test_a_cancellation_after_a_killed_worker(store: RunStore, location: Location) -> None:
    """It does not end the claim of a worker whose lease had expired, whoever cancels."""
    runs = DurableRuns(store, [AGENT])
    for later in (False, True):
        run_id = await runs.submit(AGENT, "hello")
        await claimed(store, is_traced=True)
        if later:
            await runs.cancel(run_id, "not needed")
        location.end_leases()
        await (runs.work_until_idle() if later else runs.cancel(run_id, "not needed"))
        assert (await runs.status(run_id)).status == "cancelled"
        assert await claims(store, run_id) == [("claim 1", INTERRUPTED)]


async def test_a_worker_that_cancels(store: RunStore) -> None:
    """A claim that was asked to cancel the run has ended with that."""
    run_id = await DurableRuns(store, [AGENT]).submit(AGENT, "hello")
    claim = await claimed(store, is_traced=True)
    await store.finish(claim, "cancelled", events=[{"type": "run.cancelled"}])
    assert await claims(store, run_id) == [("claim 1", "cancelled")]


async def test_a_run_that_was_given_up(store: RunStore, location: Location) -> None:
    """Neither that nor a retry of it is a claim."""
    runs = DurableRuns(store, [AGENT], max_expired_leases=1)
    run_id = await runs.submit(AGENT, "hello")
    for _ in range(3):
        await claimed(store, is_traced=True)
        location.end_leases()
    await runs.work_until_idle()
    killed = [(f"claim {number}", INTERRUPTED) for number in (1, 2, 3)]
    assert (await runs.status(run_id)).error_type == "given_up"
    assert await claims(store, run_id) == killed
    await runs.retry(run_id)
    assert await claims(store, run_id) == killed
    await runs.work_until_idle()
    assert await claims(store, run_id) == [*killed, ("claim 6 and the wait for it", "completed")]


async def test_decisions(store: RunStore) -> None:
    """An approval that was decided says how."""
    runs = DurableRuns(store, [AGENT])
    for is_approved, note in ((True, "approved"), (False, "denied")):
        run_id = await runs.submit(AGENT, "pay")
        await runs.work_until_idle()
        [request] = (await runs.status(run_id)).approvals
        await runs.decide(run_id, [Decision(request.approval_id, is_approved)])
        [row] = [row for row in await timeline(store, run_id) if row.kind == "approval"]
        assert (row.label, row.note) == ("pay", note)


async def test_a_retry_that_is_cancelled(store: RunStore) -> None:
    """The wait for the next attempt has ended with the run."""
    runs = DurableRuns(store, [AGENT], retry=RetryPolicy(backoff=900, jitter=lambda: 1.0))
    run_id = await runs.submit(AGENT, "overloaded")
    await runs.work_until_idle()
    kinds = [(row.kind, row.length.startswith("for ")) for row in await timeline(store, run_id)]
    assert kinds == [("pass", False), ("retry", True)]
    await runs.cancel(run_id, "not needed")
    failed, waited = await timeline(store, run_id)
    assert (failed.label, failed.note) == ("claim and the wait for it", "retrying")
    assert "min" not in waited.length
