"""Transactions on runs: submit, claim, journal, the end of a pass, cancellation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import ConfigError
from pellucid.durable import Changes, NewCall, RunDue
from pellucid.errors import DuplicateKey, Fenced, IdempotencyConflict, UnknownRun
from support.runs import within
from support.stores import claimed, waiting

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio

EXPIRED = 0.0
"""A lease that is over at once."""


async def test_submitted_run_is_due(store: RunStore) -> None:
    """A submitted run is due, with its request and trace."""
    submission = await store.submit("run", "agent", {"question": "é \x00 \ud800"}, trace={"traceparent": "00-1-2-01"})
    run = await store.run("run")
    assert submission.is_new
    assert run == submission.run
    assert (run.agent, run.status, run.pass_no, run.fence) == ("agent", "due", 1, 0)
    assert (run.request, run.trace) == ({"question": "é \x00 \ud800"}, {"traceparent": "00-1-2-01"})


async def test_same_key_returns_the_run(store: RunStore) -> None:
    """The same idempotency key with the same request is the same run, whatever its id."""
    first = await store.submit("first", "agent", {"a": 1, "b": 2}, idempotency_key="key")
    second = await store.submit("second", "agent", {"b": 2, "a": 1}, idempotency_key="key")
    assert (second.run.id, second.is_new) == ("first", False)
    assert second.run == first.run
    assert await store.run("second") is None


async def test_same_id_returns_the_run(store: RunStore) -> None:
    """The same id with the same request is the same run."""
    await store.submit("run", "agent", "x")
    assert not (await store.submit("run", "agent", "x")).is_new


@pytest.mark.parametrize(
    ("run_id", "agent", "request_", "key", "named"),
    [
        ("other", "agent", "y", "key", "'key'"),
        ("other", "another", "x", "key", "'key'"),
        ("run", "agent", "y", None, "'run'"),
    ],
)
async def test_conflicting_submission(
    store: RunStore, run_id: str, agent: str, request_: str, key: str | None, named: str
) -> None:
    """An id or key of another agent or request is refused by name, and nothing is written."""
    await store.submit("run", "agent", "x", idempotency_key="key")
    with pytest.raises(IdempotencyConflict, match=named) as caught:
        await store.submit(run_id, agent, request_, idempotency_key=key)
    assert (caught.value.run_id, caught.value.key) == ("run", key)
    assert [run.run_id for run in (await store.list_runs()).runs] == ["run"]


async def test_one_of_many_submissions_wins(store: RunStore) -> None:
    """Of 20 submissions with one key at once, one makes the run."""
    made: list[bool] = []

    async def submit(number: int) -> None:
        made.append((await store.submit(f"run-{number}", "agent", "x", idempotency_key="key")).is_new)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(submit, number)
    assert sorted(made) == [False] * 19 + [True]
    assert len((await store.list_runs()).runs) == 1


async def test_oldest_run_is_claimed_first(store: RunStore) -> None:
    """Claims take runs in the order in which they became due, and only of the worker's agents."""
    for name in ("first", "second"):
        await store.submit(name, "agent", None)
    await store.submit("foreign", "another", None)
    claims = [await store.claim("worker", ["agent", "third"], 60) for _ in range(3)]
    assert [claim and claim.run.id for claim in claims] == ["first", "second", None]
    assert claims[0] is not None
    assert (claims[0].run.status, claims[0].run.fence, claims[0].run.lease_owner) == ("running", 1, "worker")
    assert not claims[0].is_recovered


async def test_run_is_claimed_once(location: Location, store: RunStore) -> None:
    """Workers that claim at once get different runs, and none twice."""
    for number in range(12):
        await store.submit(str(number), "agent", None)
    ids: list[str] = []

    async def work(own: RunStore) -> None:
        while (claim := await own.claim("worker", ["agent"], 60)) is not None:
            ids.append(claim.run.id)

    with anyio.fail_after(60):
        async with location.open() as other, anyio.create_task_group() as group:
            for own in (store, other) * 4:
                group.start_soon(work, own)
    assert sorted(ids, key=int) == [str(number) for number in range(12)]


async def test_expired_lease_is_claimed_again(store: RunStore) -> None:
    """A run whose lease has expired is claimed by another worker, with the journal so far, in the same pass."""
    slow = await claimed(store, lease=EXPIRED)
    await store.append(slow, "a", 1)
    await store.register(slow, [NewCall("call", "tool", "t")])
    claim = await store.claim("other", ["agent"], 60)
    assert claim is not None
    assert claim.is_recovered
    assert (claim.run.fence, claim.run.pass_no) == (2, 1)
    assert [(entry.key, entry.value, entry.fence) for entry in claim.journal] == [("a", 1, 1)]
    assert [call.id for call in claim.calls] == ["call"]


async def test_slow_worker_is_fenced(store: RunStore) -> None:
    """A worker whose run was claimed by another can write nothing, and learns both fences."""
    slow = await claimed(store, lease=EXPIRED)
    quick = await store.claim("other", ["agent"], 60)
    assert quick is not None
    for write in (
        store.append(slow, "key", 1, ["event"]),
        store.renew(slow),
        store.register(slow, [NewCall("call", "tool", "t")]),
        store.end_pass(slow, {"checkpoint": 1}, entries={"key": 1}, events=["event"]),
        store.finish(slow, "completed", "slow"),
        store.release(slow),
    ):
        with pytest.raises(Fenced, match=r"claim 1 of run 'run' .* latest claim is 2") as caught:
            await write
        assert (caught.value.run_id, caught.value.fence, caught.value.current_fence) == ("run", 1, 2)
    assert await store.run("run") == quick.run
    assert await store.journal("run") == ()
    assert await store.calls("run") == ()


async def test_lease_by_the_database_clock(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose clock is an hour ahead takes no lease of others, and has none that is longer."""
    held = await claimed(store)
    real = time.time
    for name in ("time", "monotonic", "perf_counter"):
        now = getattr(time, name)
        monkeypatch.setattr(time, name, lambda now=now: now() + 3600)
    assert await store.claim("ahead", ["agent"], 60) is None
    assert await store.recover() == await store.recover()
    await store.submit("second", "agent", None)
    claim = await store.claim("ahead", ["agent"], 60)
    assert claim is not None
    assert claim.run.lease_until is not None
    assert claim.run.lease_until < real() + 600
    await store.renew(held)


async def test_journal_entries_in_order(store: RunStore) -> None:
    """Entries and events of a run share one sequence, and each write renews the lease."""
    claim = await claimed(store)
    first = await store.append(claim, "a", {"text": "x" * 5000}, ["e1", "e2"])
    second = await store.append(claim, "b", [1, None, 1.5])
    assert (first.seq, second.seq) == (1, 4)
    assert second.until >= first.until >= (claim.run.lease_until or 0)
    assert first.cancel_reason is None
    journal = await store.journal("run")
    assert [(entry.seq, entry.key, entry.value) for entry in journal] == [
        (1, "a", {"text": "x" * 5000}),
        (4, "b", [1, None, 1.5]),
    ]
    assert [(event.seq, event.value) for event in (await store.events("run")).events] == [(2, "e1"), (3, "e2")]


async def test_key_is_written_once(store: RunStore) -> None:
    """A second entry of a key is refused by name, with its events."""
    claim = await claimed(store)
    await store.append(claim, "a", 1)
    with pytest.raises(DuplicateKey, match="'a' was written before") as caught:
        await store.append(claim, "a", 1, ["event"])
    assert (caught.value.run_id, caught.value.key) == ("run", "a")
    assert (await store.events("run")).events == ()
    assert (await store.append(claim, "b", 2)).seq == 2


@pytest.mark.parametrize("value", [float("nan"), {"x": object()}, {1, 2}])
async def test_values_must_be_json(store: RunStore, value: object) -> None:
    """A value that is not JSON is refused, nothing is written, and the store goes on."""
    claim = await claimed(store)
    with pytest.raises((TypeError, ValueError)):
        await store.append(claim, "a", value)
    assert (await store.append(claim, "a", 1)).seq == 1


async def test_pass_without_calls_is_due(store: RunStore) -> None:
    """A pass that ends without pending calls makes the run due; its checkpoint stands for the journal so far."""
    claim = await claimed(store)
    await store.append(claim, "a", 1)
    assert await store.end_pass(claim, {"messages": []}, entries={"b": 2}, events=["ended"]) == "due"
    again = await store.claim("other", ["agent"], 60)
    assert again is not None
    assert not again.is_recovered
    assert (again.run.checkpoint, again.run.pass_no, again.journal) == ({"messages": []}, 2, ())
    assert [entry.key for entry in await store.journal("run")] == ["a", "b"]
    with pytest.raises(Fenced):
        await store.append(claim, "c", 3)


async def test_pass_without_checkpoint_keeps_the_journal(store: RunStore) -> None:
    """Without a checkpoint, the next claim gets the whole journal."""
    claim = await claimed(store)
    await store.append(claim, "a", 1)
    await store.end_pass(claim)
    again = await store.claim("other", ["agent"], 60)
    assert again is not None
    assert [entry.key for entry in again.journal] == ["a"]


async def test_finished_run(store: RunStore) -> None:
    """A finished run has its result, cancels pending calls, and is never claimed again."""
    claim = await claimed(store)
    await store.register(claim, [NewCall("call", "tool", "t")])
    cancelled = await store.finish(claim, "completed", {"output": 1}, entries={"end": True}, events=["finished"])
    run = await store.run("run")
    assert run is not None
    assert (run.status, run.result, run.pending, run.lease_until) == ("completed", {"output": 1}, 0, None)
    assert [(call.id, call.status) for call in cancelled] == [("call", "cancelled")]
    assert (await store.settle("call", "completed", 1)).outcome == "late"
    assert await store.claim("other", ["agent"], 60) is None
    with pytest.raises(Fenced, match="the run is completed"):
        await store.finish(claim, "completed", {"output": 1})


async def test_released_claim(store: RunStore) -> None:
    """A released claim makes the run due in the same pass, after a delay if one is given."""
    claim = await claimed(store)
    await store.append(claim, "a", 1)
    await store.release(claim)
    again = await store.claim("other", ["agent"], 60)
    assert again is not None
    assert (again.is_recovered, again.run.pass_no, len(again.journal)) == (False, 1, 1)
    await store.release(again, delay=3600)
    assert await store.claim("other", ["agent"], 60) is None


async def test_recover_twice(store: RunStore) -> None:
    """Recovery makes runs with expired leases due and expires calls; the second time it changes nothing."""
    await waiting(store, "overdue", run_id="waits", expires_after=0.0)
    slow = await claimed(store, lease=EXPIRED)
    recovery = await store.recover()
    assert recovery.run_ids == ("run",)
    assert [(one.outcome, one.is_run_due, one.call and one.call.id) for one in recovery.expired] == [
        ("settled", True, "overdue")
    ]
    runs = await store.list_runs()
    again = await store.recover()
    assert (again.run_ids, again.expired) == ((), ())
    assert await store.list_runs() == runs
    with pytest.raises(Fenced, match="the run is due"):
        await store.append(slow, "a", 1)
    claims = [await store.claim("other", ["agent"], 60) for _ in range(2)]
    assert {claim.run.id: claim.is_recovered for claim in claims if claim} == {"run": True, "waits": False}


async def test_cancelled_while_waiting(store: RunStore) -> None:
    """A waiting run is cancelled at once, with its pending calls and the events given."""
    await waiting(store, "a", "b")
    await store.settle("a", "completed", 1)
    cancellation = await store.cancel("run", "not needed", ["cancelled"])
    assert (cancellation.outcome, [call.id for call in cancellation.calls]) == ("cancelled", ["b"])
    run = await store.run("run")
    assert run is not None
    assert run == cancellation.run
    assert (run.status, run.cancel_reason, run.pending) == ("cancelled", "not needed", 0)
    assert (await store.settle("b", "completed", 1)).outcome == "late"
    page = await store.events("run")
    assert ([event.value for event in page.events], page.run_status) == (["cancelled"], "cancelled")
    assert (await store.cancel("run", "again")).outcome == "ended"
    assert await store.claim("worker", ["agent"], 60) is None


async def test_cancelled_while_due(store: RunStore) -> None:
    """A due run is cancelled at once."""
    await store.submit("run", "agent", None)
    assert (await store.cancel("run", "not needed")).outcome == "cancelled"
    assert await store.claim("worker", ["agent"], 60) is None


async def test_cancelled_while_running(store: RunStore) -> None:
    """The worker of a running run sees the first reason at each write, and ends the run."""
    claim = await claimed(store)
    assert (await store.cancel("run", "not needed", ["cancelled"])).outcome == "requested"
    assert (await store.cancel("run", "again")).outcome == "requested"
    assert (await store.renew(claim)).cancel_reason == "not needed"
    assert (await store.append(claim, "a", 1)).cancel_reason == "not needed"
    lease = await store.register(claim, [NewCall("call", "tool", "t")])
    assert lease.cancel_reason == "not needed"
    await store.finish(claim, "cancelled")
    run = await store.run("run")
    assert run is not None
    assert run.status == "cancelled"
    assert (await store.events("run")).events == ()


async def test_cancellation_outlives_its_worker(store: RunStore) -> None:
    """A worker that takes over a run sees that cancellation was requested of the worker before."""
    claim = await claimed(store)
    await store.cancel("run", "not needed")
    await store.release(claim)
    again = await store.claim("other", ["agent"], 60)
    assert again is not None
    assert again.run.cancel_reason == "not needed"


async def test_pass_of_a_cancelled_run_ends_it(store: RunStore) -> None:
    """A pass that ends without having seen the cancellation ends the run, with its calls."""
    claim = await claimed(store)
    await store.register(claim, [NewCall("call", "tool", "t")])
    await store.cancel("run", "not needed")
    assert await store.end_pass(claim, {}) == "cancelled"
    run = await store.run("run")
    call = await store.call("call")
    assert run is not None
    assert call is not None
    assert (run.status, run.pending, call.status) == ("cancelled", 0, "cancelled")


async def test_run_of_a_dead_worker_is_cancelled(store: RunStore) -> None:
    """A run whose lease has expired is cancelled at once, and its worker is fenced."""
    slow = await claimed(store, lease=EXPIRED)
    assert (await store.cancel("run", "not needed")).outcome == "cancelled"
    with pytest.raises(Fenced, match="the run is cancelled"):
        await store.append(slow, "a", 1)


async def test_unknown_runs(store: RunStore) -> None:
    """A run that does not exist is named."""
    assert await store.run("nothing") is None
    assert (await store.cancel("nothing", "why")).outcome == "unknown"
    for read in (
        store.emit("nothing", ["event"]),
        store.events("nothing"),
        store.wait_for_events("nothing", 0, 1),
    ):
        with pytest.raises(UnknownRun, match="'nothing'"):
            await read


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
async def test_leases_are_seconds(store: RunStore, seconds: float) -> None:
    """A lease that is not a number of seconds is refused."""
    with pytest.raises(ConfigError, match="seconds"):
        await store.claim("worker", ["agent"], seconds)


async def test_cancelled_callers_finish_their_transactions(store: RunStore) -> None:
    """A caller that is cancelled leaves no transaction open: what it wrote is whole, and others go on."""
    claim = await claimed(store)
    written: list[int] = []

    async def write(number: int) -> None:
        written.append((await store.append(claim, str(number), number, ["event"])).seq)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
        await within(store.renew(claim))
        group.cancel_scope.cancel()
    lease = await within(store.append(claim, "last", None))
    journal, page = await store.journal("run"), await store.events("run")
    assert len(journal) - 1 == len(page.events) >= len(written)
    assert lease.seq == 2 * len(page.events) + 1


async def test_old_runs_are_deleted(store: RunStore) -> None:
    """Runs that have ended go with all that is theirs; those that have not, and those that ended lately, stay."""
    await waiting(store, "call-1", run_id="ended")
    assert (await store.cancel("ended", "enough", [{"type": "cancelled"}])).outcome == "cancelled"
    await waiting(store, "call-2", run_id="open")
    assert await store.purge(3600) == 0
    assert await store.purge(0) == 1
    assert await store.purge(0) == 0
    assert (await store.run("ended"), await store.journal("ended"), await store.calls("ended")) == (None, (), ())
    with pytest.raises(UnknownRun):
        await store.events("ended")
    assert (await store.settle("call-1", "completed", 1)).outcome == "unknown"
    assert (await store.submit("ended", "agent", "another")).is_new
    assert (await store.settle("call-2", "completed", 1)).outcome == "settled"


async def test_claim_of_one_run(store: RunStore) -> None:
    """A run can be claimed by its id if it is due or its lease has expired, and by a worker with its agent."""
    for run_id in ("first", "second"):
        await store.submit(run_id, "agent", run_id)
    assert await store.claim_run("second", "another", "worker", 60.0) is None
    assert await store.claim_run("third", "agent", "worker", 60.0) is None
    claim = await store.claim_run("second", "agent", "worker", EXPIRED)
    assert claim is not None
    assert (claim.run.id, claim.run.fence, claim.is_recovered) == ("second", 1, False)
    recovered = await store.claim_run("second", "agent", "worker", 60.0, max_expired_leases=2)
    assert recovered is not None
    assert (recovered.run.fence, recovered.is_recovered) == (2, True)
    assert await store.claim_run("second", "agent", "worker", 60.0) is None
    await store.finish(recovered, "completed")
    assert await store.claim_run("second", "agent", "worker", 60.0) is None


async def test_changes_of_commits(store: RunStore) -> None:
    """After each commit listeners receive the runs that are due now, by their latest claim, and those with events."""
    changes: list[Changes] = []
    store.on_commit(changes.append)
    await store.submit("run", "agent", None)
    await store.submit("run", "agent", None)
    claim = await store.claim("worker", ["agent"], 60.0)
    assert claim is not None
    await store.register(claim, [NewCall("call", "tool", "t")], [{"type": "registered"}])
    await store.end_pass(claim, {})
    await store.settle("call", "completed", 1, events=[{"type": "settled"}])
    lost = await store.claim("worker", ["agent"], EXPIRED)
    assert lost is not None
    await store.recover()
    last = await store.claim("worker", ["agent"], 60.0)
    assert last is not None
    await store.release(last, delay=60.0)
    assert changes == [
        Changes(due=(RunDue("run", "agent", 0),)),
        Changes(events=("run",)),
        Changes(events=("run",)),
        Changes(due=(RunDue("run", "agent", 1),), events=("run",)),
        Changes(due=(RunDue("run", "agent", 2),)),
    ]
