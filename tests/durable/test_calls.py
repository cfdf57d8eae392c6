"""Transactions on calls: registration, settlement, expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import ConfigError
from pellucid.durable import NewCall, PendingCalls, Settlement
from pellucid.errors import DuplicateKey
from support.stores import claimed, waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pellucid.durable import RunStore

pytestmark = pytest.mark.anyio


async def all_at_once(*functions: Callable[[], Awaitable[Settlement]]) -> list[Settlement]:
    """Start all functions, and return the settlements."""
    settlements: list[Settlement] = []

    async def settle(function: Callable[[], Awaitable[Settlement]]) -> None:
        settlements.append(await function())

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            for function in functions:
                group.start_soon(settle, function)
    return settlements


async def test_registered_call(store: RunStore) -> None:
    """A registered call is processing, with all that was given, and counted by its run."""
    claim = await claimed(store)
    new = NewCall("call", "search", "t1", {"query": "x"}, timeout=60, trace={"traceparent": "00"})
    lease = await store.register(claim, [new, NewCall("asks", "delete", "t2", kind="approval")], ["registered"])
    call, asks = await store.calls("run")
    assert (call.seq, asks.seq, lease.seq) == (1, 2, 3)
    assert (call.id, call.run_id, call.pass_no, call.kind, call.tool) == ("call", "run", 1, "external", "search")
    assert (call.tool_call_id, call.request, call.trace) == ("t1", {"query": "x"}, {"traceparent": "00"})
    assert call.status == "processing"
    assert call.expires_at == pytest.approx(call.created_at + 60)
    assert (asks.kind, asks.expires_at) == ("approval", None)
    run = await store.run("run")
    assert run is not None
    assert run.pending == 2


async def test_call_is_registered_once(store: RunStore) -> None:
    """A call with an id that exists is refused by name, with all others of its registration."""
    claim = await claimed(store)
    await store.register(claim, [NewCall("a", "tool", "t")])
    with pytest.raises(DuplicateKey, match="'a'"):
        await store.register(claim, [NewCall("b", "tool", "t"), NewCall("a", "tool", "t")])
    assert [call.id for call in await store.calls("run")] == ["a"]
    with pytest.raises(ConfigError, match="no calls"):
        await store.register(claim, [])


async def test_undispatched_calls(store: RunStore) -> None:
    """External calls that were never marked as dispatched are found; approvals are not dispatched."""
    claim = await claimed(store)
    await store.register(
        claim, [NewCall("a", "t", "1"), NewCall("b", "t", "2"), NewCall("asks", "t", "3", kind="approval")]
    )
    assert [call.id for call in await store.undispatched(0)] == ["a", "b"]
    assert await store.undispatched(3600) == ()
    assert await store.mark_dispatched("a")
    assert not await store.mark_dispatched("a")
    assert not await store.mark_dispatched("nothing")
    assert [call.id for call in await store.undispatched(0)] == ["b"]


async def test_last_settlement_makes_the_run_due(store: RunStore) -> None:
    """A run waits for all of its calls, approvals included; the last settlement makes it due."""
    claim = await claimed(store)
    await store.register(claim, [NewCall("a", "t", "1"), NewCall("b", "t", "2", kind="approval")])
    assert await store.end_pass(claim, {"pass": 1}) == "waiting"
    first = await store.settle("a", "completed", {"answer": 1}, events=["a settled"])
    assert (first.outcome, first.pending, first.is_run_due) == ("settled", 1, False)
    assert await store.claim("worker", ["agent"], 60) is None
    second = await store.settle("b", "failed", None, trace={"traceparent": "00-b"})
    assert (second.outcome, second.pending, second.is_run_due) == ("settled", 0, True)
    again = await store.claim("worker", ["agent"], 60)
    assert again is not None
    assert [(call.status, call.output) for call in again.calls] == [("completed", {"answer": 1}), ("failed", None)]
    assert [call.settlement_trace for call in again.calls] == [None, {"traceparent": "00-b"}]
    assert [event.value for event in (await store.events("run")).events] == ["a settled"]


async def test_old_names_of_settlements(store: RunStore) -> None:
    """Each works, and warns where it is used."""
    await waiting(store, "a")
    old: Any = store
    with pytest.warns(DeprecationWarning, match=r"\.settle\(\w+=\) is deprecated; use `\w+=`$") as caught:
        await old.settle(call_id="a", status="completed", payload=1)
    assert [warning.filename for warning in caught] == [__file__] * 2
    with pytest.warns(DeprecationWarning, match=r"\.call\(call_id=\) is deprecated; use `result_id=`$"):
        call: Any = await old.call(call_id="a")
    with pytest.warns(DeprecationWarning, match=r"CallRecord\.payload is deprecated; use `output`$"):
        assert call.payload == call.output == 1


async def test_settled_again(store: RunStore) -> None:
    """The same settlement again is a duplicate, another one a conflict; neither changes anything."""
    await waiting(store, "a", "b")
    settled = await store.settle("a", "completed", {"x": 1, "y": 2})
    duplicate = await store.settle("a", "completed", {"y": 2, "x": 1}, events=["again"])
    assert (duplicate.outcome, duplicate.pending, duplicate.is_run_due) == ("duplicate", 1, False)
    assert duplicate.call == settled.call
    for status, payload in (("completed", {"x": 2}), ("failed", {"x": 1, "y": 2})):
        conflict = await store.settle("a", status, payload)  # type: ignore[arg-type]
        assert (conflict.outcome, conflict.call) == ("conflict", settled.call)
    assert (await store.settle("nothing", "completed")) == Settlement("unknown")


async def test_a_call_of_another_run_is_unknown(store: RunStore) -> None:
    """If a run is given: before and after the settlement, which only its own run's is."""
    await waiting(store, "call")
    assert await store.settle("call", "completed", run_id="other") == Settlement("unknown")
    call = await store.call("call")
    assert call is not None
    assert call.status == "processing"
    for outcome in ("settled", "duplicate"):
        assert (await store.settle("call", "completed", run_id=call.run_id)).outcome == outcome
        assert await store.settle("call", "completed", run_id="other") == Settlement("unknown")
    assert (await store.events("run")).events == ()


async def test_own_digest(store: RunStore) -> None:
    """A digest that is given decides what a duplicate is."""
    await waiting(store, "a")
    await store.settle("a", "completed", {"at": 1}, digest="d")
    assert (await store.settle("a", "completed", {"at": 2}, digest="d")).outcome == "duplicate"
    assert (await store.settle("a", "completed", {"at": 1}, digest="e")).outcome == "conflict"


async def test_settled_before_the_pass_ends(store: RunStore) -> None:
    """A run whose calls were all settled while its pass was running is due when the pass ends."""
    claim = await claimed(store)
    await store.register(claim, [NewCall("a", "tool", "t")])
    settlement = await store.settle("a", "completed")
    assert (settlement.outcome, settlement.is_run_due) == ("settled", False)
    assert await store.claim("other", ["agent"], 60) is None
    assert await store.end_pass(claim, {}) == "due"


async def test_settled_while_the_pass_ends(store: RunStore) -> None:
    """A settlement that meets the end of its pass wakes the run exactly once, in whichever order they commit."""
    for number in range(10):
        claim = await claimed(store, f"run-{number}")
        await store.register(claim, [NewCall(f"call-{number}", "tool", "t")])
        ends: list[str] = []

        async def end() -> Settlement:
            ends.append(await store.end_pass(claim, {}))  # noqa: B023  (called within the iteration)
            return Settlement("unknown")

        settlements = await all_at_once(lambda: store.settle(f"call-{number}", "completed"), end)  # noqa: B023
        due = [one.is_run_due for one in settlements if one.outcome == "settled"]
        assert (due, ends) in [([True], ["waiting"]), ([False], ["due"])]
        again = await store.claim("worker", ["agent"], 60)
        assert again is not None
        assert again.run.id == f"run-{number}"
        await store.finish(again, "completed")


async def test_fifty_calls_settled_at_once(store: RunStore) -> None:
    """Fifty calls that are settled at once wake their run once."""
    ids = [f"call-{number}" for number in range(50)]
    await waiting(store, *ids)
    settlements = await all_at_once(*(lambda id_=id_: store.settle(id_, "completed", id_) for id_ in ids))
    assert [one.outcome for one in settlements] == ["settled"] * 50
    assert [one.is_run_due for one in settlements].count(True) == 1
    assert sorted(one.pending for one in settlements) == list(range(50))
    assert await store.claim("worker", ["agent"], 60) is not None
    assert await store.claim("worker", ["agent"], 60) is None


async def test_one_call_settled_by_fifty(store: RunStore) -> None:
    """Of fifty callers that settle one call with different results, one wins and the others are told."""
    await waiting(store, "a")
    settlements = await all_at_once(*(lambda n=n: store.settle("a", "completed", n) for n in range(50)))
    assert sorted(one.outcome for one in settlements) == ["conflict"] * 49 + ["settled"]
    (settled,) = [one for one in settlements if one.outcome == "settled"]
    assert all(one.call == settled.call for one in settlements)
    assert settled.is_run_due


async def test_expired_call(store: RunStore) -> None:
    """A call past its deadline is expired once; its result is late, also when it is repeated."""
    await waiting(store, "a", "b", expires_after=0.0)
    await waiting(store, "c", run_id="another", expires_after=3600)
    expired = await store.expire()
    assert sorted((one.call and one.call.id, one.outcome, one.is_run_due) for one in expired) == [
        ("a", "settled", False),
        ("b", "settled", True),
    ]
    assert await store.expire() == ()
    for _ in range(2):
        late = await store.settle("a", "completed", {"answer": 1}, events=["late"])
        assert late.outcome == "late"
        assert late.call is not None
        assert (late.call.status, late.call.output) == ("expired", None)


async def test_result_between_deadline_and_expiry(store: RunStore) -> None:
    """A result past the deadline is late without a sweep; it expires the call, and the run goes on."""
    await waiting(store, "a", expires_after=0.0)
    settlement = await store.settle("a", "completed", 1)
    assert settlement.call is not None
    assert (settlement.outcome, settlement.has_expired, settlement.is_run_due) == ("late", True, True)
    assert (settlement.call.status, settlement.call.output) == ("expired", None)
    assert [event.value["type"] for event in (await store.events("run")).events] == ["async_tool.settled"]
    assert await store.expire() == ()
    repeated = await store.settle("a", "completed", 1)
    assert (repeated.outcome, repeated.has_expired, repeated.is_run_due) == ("late", False, False)


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), ({"v": [2.0]}, {"v": [2]})])
async def test_one_number(store: RunStore, first: Any, second: Any) -> None:
    """1 and 1.0 are the same result; 1 and true are not."""
    await waiting(store, "a", "b")
    assert (await store.settle("a", "completed", first)).outcome == "settled"
    assert (await store.settle("a", "completed", second)).outcome == "duplicate"
    await store.settle("b", "completed", 1)
    assert (await store.settle("b", "completed", output=True)).outcome == "conflict"


async def test_expiry_against_settlement(store: RunStore) -> None:
    """Of an expiry and a settlement at once, one wins, and the run becomes due once."""
    for number in range(10):
        await waiting(store, f"call-{number}", run_id=f"run-{number}", expires_after=0.0)

        async def expire() -> Settlement:
            expired = await store.expire()
            return expired[0] if expired else Settlement("unknown")

        settlements = await all_at_once(expire, lambda: store.settle(f"call-{number}", "completed"), expire)  # noqa: B023
        outcomes = sorted(one.outcome for one in settlements)
        assert outcomes in (
            ["late", "settled", "unknown"],
            ["late", "unknown", "unknown"],
        )  # the late one may expire it
        assert [one.is_run_due for one in settlements].count(True) == 1
        assert await store.claim("worker", ["agent"], 60) is not None
        assert await store.claim("worker", ["agent"], 60) is None


async def test_many_overdue_calls(store: RunStore) -> None:
    """All overdue calls are expired, in batches, also by two sweepers at once, each call once."""
    for number in range(3):
        await waiting(store, *(f"{number}-{call}" for call in range(80)), run_id=f"run-{number}", expires_after=0.0)
    ids: list[str] = []

    async def sweep() -> Settlement:
        ids.extend(one.call.id for one in await store.expire() if one.call)
        return Settlement("unknown")

    await all_at_once(sweep, sweep)
    await sweep()
    assert len(ids) == len(set(ids)) == 240
    assert {run.status for run in (await store.list_runs()).runs} == {"due"}


async def test_cancel_against_settlement(store: RunStore) -> None:
    """Of a cancellation and the last settlement at once, the run ends cancelled and is not claimed."""
    for number in range(10):
        await waiting(store, f"call-{number}", run_id=f"run-{number}")

        async def cancel() -> Settlement:
            cancellation = await store.cancel(f"run-{number}", "not needed")  # noqa: B023
            assert cancellation.outcome == "cancelled"
            return Settlement("unknown")

        settlements = await all_at_once(lambda: store.settle(f"call-{number}", "completed"), cancel)  # noqa: B023
        (outcome,) = [one.outcome for one in settlements if one.outcome != "unknown"]
        call = await store.call(f"call-{number}")
        assert call is not None
        assert (outcome, call.status) in [("settled", "completed"), ("late", "cancelled")]
        assert await store.claim("worker", ["agent"], 60) is None


async def test_heartbeats(store: RunStore) -> None:
    """A heartbeat extends the deadline and never shortens it; progress is kept; a settled call is unchanged."""
    await waiting(store, "a", expires_after=0.0)
    await waiting(store, "b", run_id="second", expires_after=3600)
    await waiting(store, "c", run_id="third")
    a = await store.heartbeat("a", extend=3600)
    assert a is not None
    assert a.heartbeat_at is not None
    assert a.expires_at == pytest.approx(a.heartbeat_at + 3600)
    assert await store.expire() == ()
    b = await store.heartbeat("b", extend=1)
    assert b is not None
    assert b.expires_at == pytest.approx(b.created_at + 3600)
    c = await store.progress("c", {"done": 0.5})
    assert c is not None
    assert (c.progress, c.expires_at) == ({"done": 0.5}, None)
    settled = (await store.settle("c", "completed")).call
    assert await store.progress("c", {"done": 1}) == settled
    assert await store.heartbeat("nothing") is None


async def test_statistics(store: RunStore) -> None:
    """Statistics count runs by status, and pending calls by tool and kind with the age of the oldest."""
    empty = await store.statistics()
    assert (empty.runs, empty.pending, empty.due_age) == ({}, (), None)
    claim = await claimed(store)
    await store.register(
        claim, [NewCall("a", "x", "1"), NewCall("b", "x", "2"), NewCall("c", "x", "3", kind="approval")]
    )
    await store.submit("second", "agent", None)
    statistics = await store.statistics()
    assert statistics.runs == (await store.statistics(is_open_only=True)).runs == {"running": 1, "due": 1}
    assert statistics.due_age is not None
    assert 0 <= statistics.due_age < 60
    approvals, x = statistics.pending
    assert x == PendingCalls("x", "external", 2, x.age)
    assert approvals == PendingCalls("x", "approval", 1, approvals.age)
    assert 0 <= x.age < 60
    [due] = statistics.due
    assert (due.agent, due.number, due.age) == ("agent", 1, statistics.due_age)
    await store.register(claim, [NewCall("d", "x", "4", timeout=1000.0), NewCall("e", "x", "5", timeout=0.0)])
    x = (await store.statistics()).pending[1]
    assert x.number == 4
    assert x.deadline_used is not None
    assert 0 <= x.deadline_used < 1
    await store.finish(claim, "completed")
    assert (await store.statistics()).runs == {"completed": 1, "due": 1}
    assert (await store.statistics(is_open_only=True)).runs == {"due": 1}
