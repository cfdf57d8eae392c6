"""Runs whose agent changes while they wait: who continues them, and what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, ModelError, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns, RetryPolicy
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.durable_agents import DO, OWED, nothing
from support.runs import within

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

RENAMED = Tool(name="do", run=nothing, description="Does something else.")


def agent(*steps: Any, **options: Any) -> Agent:
    """Return an agent of the name `a`."""
    return Agent("a", model=ScriptedModel(*steps), **{"tools": [OWED, DO], "instructions": "Be brief.", **options})


async def changes(runs: DurableRuns, run_id: str) -> list[dict[str, Any]]:
    """Return the data of the events that the code has changed."""
    page = await runs.event_page(run_id)
    return [dict(event.data) for event in page.events if event.type == "run.code_changed"]


@pytest.mark.parametrize("options", [{"instructions": "Be long."}, {"tools": [OWED, RENAMED]}], ids=str)
async def test_another_agent_after_a_wait_is_an_event(store: RunStore, options: dict[str, Any]) -> None:
    """Other instructions or another tool: the event and the span of the pass have both digests."""
    before = DurableRuns(store, [agent(ToolCall("owed", {}, "c"))])
    with capture(fixed=False) as telemetry:
        run_id = await before.submit("a", "go")
        await within(before.work_until_idle())
        [first] = telemetry.find("invoke_agent a")
        [call] = (await before.status(run_id)).external
        await before.settle(call.id, output=1)
        after = DurableRuns(store, [agent("end", **options)])
        await within(after.work_until_idle())
        [_, second] = telemetry.find("invoke_agent a")
    assert (await after.status(run_id)).output == "end"
    [change] = await changes(after, run_id)
    assert first.attributes is not None
    assert second.attributes is not None
    assert first.attributes[semconv.AGENT_DIGEST] == change["previous_digest"]
    assert semconv.AGENT_PREVIOUS_DIGEST not in first.attributes
    assert second.attributes[semconv.AGENT_DIGEST] == change["digest"] != change["previous_digest"]
    assert second.attributes[semconv.AGENT_PREVIOUS_DIGEST] == change["previous_digest"]


async def test_the_same_agent_is_no_event(store: RunStore) -> None:
    """An equal agent of another process continues the run, across a wait and after an error."""
    steps = [ToolCall("owed", {}, "c"), ModelError("m", "down", error_kind="unavailable"), "end"]
    for step in steps:
        runs = DurableRuns(store, [agent(step)], retry=RetryPolicy(backoff=0, max_attempts=2))
        if step is steps[0]:
            run_id = await runs.submit("a", "go")
        claims = await within(runs.work_until_idle(concurrency=1))
        assert claims >= 1
        for call in (await runs.status(run_id)).external:
            await runs.settle(call.id, output=1)
        if step is steps[1]:
            await runs.retry(run_id)
    assert (await runs.status(run_id)).output == "end"
    assert await changes(runs, run_id) == []


async def test_another_agent_after_an_error_is_an_event(location: Location, store: RunStore) -> None:
    """Without a checkpoint in between, and without telemetry, the journal knows the code of its steps."""
    down = ModelError("m", "down", error_kind="unavailable")
    before = DurableRuns(store, [agent(ToolCall("do", {}, "c"), down)])
    run_id = await before.submit("a", "go")
    await within(before.work_until_idle())
    location.execute("UPDATE runs SET due_at = 0")
    after = DurableRuns(store, [agent("end", instructions="Be long.")])
    await within(after.work_until_idle())
    assert (await after.status(run_id)).output == "end"
    assert len(await changes(after, run_id)) == 1


@pytest.mark.parametrize("options", [{"on_change": "wait"}, {"version": "1"}], ids=str)
async def test_a_run_waits_for_the_code_with_which_it_has_begun(store: RunStore, options: dict[str, Any]) -> None:
    """Workers of another version neither claim it nor look for it in vain; the store says for which one it waits."""
    old = DurableRuns(store, [agent(ToolCall("owed", {}, "c"), "end")], **options)
    other = {"version": "2"} if "version" in options else options
    new = DurableRuns(store, [agent("other", instructions="Be long.")], **other)
    run_id = await old.submit("a", "go")
    await within(old.work_until_idle())
    [call] = (await old.status(run_id)).external
    await old.settle(call.id, output=1)
    assert await within(new.work_until_idle()) == 0
    versions = new._worker.claims.versions
    assert not await store.wait_for_work(["a"], 0, versions=versions)
    assert await store.claim_run(run_id, "a", "new", 60, versions=versions) is None
    [pinned] = await store.pinned()
    assert (pinned.agent, pinned.number) == ("a", 1)
    if "version" in options:
        assert pinned.version == "1"
    fresh = await new.submit("a", "go")
    assert await within(new.work_until_idle()) == 1
    assert (await new.status(fresh)).output == "other"
    assert await within(old.work_until_idle()) == 1
    assert (await old.status(run_id)).output == "end"
    assert await store.pinned() == ()


async def test_a_worker_without_a_version_continues_all_runs(store: RunStore) -> None:
    """It claims runs of any version, and pins none."""
    old = DurableRuns(store, [agent(ToolCall("owed", {}, "c"))], version="1")
    run_id = await old.submit("a", "go")
    await within(old.work_until_idle())
    [call] = (await old.status(run_id)).external
    await old.settle(call.id, output=1)
    plain = DurableRuns(store, [agent("end")])
    await within(plain.work_until_idle())
    assert (await plain.status(run_id)).output == "end"
    waits = await plain.submit("a", "go")
    claim = await store.claim("plain", ["a"], 60)
    assert claim is not None
    assert (claim.run.id, await store.pinned()) == (waits, ())


async def test_a_run_whose_lease_has_expired_waits_for_its_version(location: Location, store: RunStore) -> None:
    """Also a run that may have ended the processes of its workers is left to its version."""
    await store.submit("run", "a", None)
    for _ in range(3):
        assert await store.claim("worker", ["a"], 60, versions={"a": "1"}) is not None
        assert await store.claim("worker", ["a"], 60, versions={"a": "2"}) is None
        location.end_leases()
        assert await store.claim("worker", ["a"], 60, versions={"a": "2"}) is None
    assert await store.suspect(["a"], versions={"a": "2"}) is None
    assert await store.suspect(["a"], versions={"a": "1"}) == ("run", "a")


@pytest.mark.parametrize("is_killed", [False, True], ids=["given back", "killed"])
async def test_a_run_whose_version_is_gone_is_retried(location: Location, store: RunStore, is_killed: bool) -> None:
    """An operator need not cancel it: any worker continues it then."""
    runs = DurableRuns(store, [agent("end")], version="2")
    run_id = await runs.submit("a", "go")
    claim = await store.claim("worker", ["a"], 60, versions={"a": "1"})
    assert claim is not None
    assert (await runs.retry(run_id)).outcome == "open"
    if is_killed:
        location.end_leases()
    else:
        await store.release(claim)
    assert await within(runs.work_until_idle()) == 0
    assert [(await runs.retry(run_id)).outcome for _ in range(2)] == ["due", "open"]
    assert await within(runs.work_until_idle()) == 1
    assert (await runs.status(run_id)).output == "end"


async def test_a_run_that_is_retried_chooses_its_version_anew(store: RunStore) -> None:
    """The version that failed may be gone: the next one that claims the run continues it."""
    old = DurableRuns(store, [agent(ModelError("m", "no", error_kind="auth"))], version="1")
    run_id = await old.submit("a", "go")
    await within(old.work_until_idle())
    assert (await old.retry(run_id)).outcome == "due"
    new = DurableRuns(store, [agent("end")], version="2")
    await within(new.work_until_idle())
    assert (await new.status(run_id)).output == "end"


async def test_purge_forgets_the_version(store: RunStore, location: Location) -> None:
    """An id that is used again belongs to no version."""
    runs = DurableRuns(store, [agent("end")], version="1")
    await runs.submit("a", "go", run_id="r")
    await within(runs.work_until_idle())
    assert await store.purge(0) == 1
    await store.submit("r", "a", None)
    assert await store.claim("worker", ["a"], 60, versions={"a": "2"}) is not None


@pytest.mark.parametrize("options", [{"on_change": "stop"}, {"version": ""}, {"version": "x" * 256}], ids=str)
async def test_options_are_checked(store: RunStore, options: dict[str, Any]) -> None:
    """A value that is none is refused by the name of its option."""
    [name] = options
    with pytest.raises(ConfigError, match=name):
        DurableRuns(store, [agent()], **options)
