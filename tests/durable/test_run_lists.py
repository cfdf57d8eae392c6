"""Lists of durable runs: what they can be asked for, their pages, and what they cost the database."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, Identity
from pellucid.durable import DurableRuns
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.statements import statements
from pellucid.testing import FunctionModel
from support.stores import claimed, waiting

if TYPE_CHECKING:
    from pellucid.durable import RunPage, RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio

NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {number})"


def ids(page: RunPage) -> list[str]:
    """Return the ids of a page."""
    return [run.run_id for run in page.runs]


def fill(location: Location, number: int = 3000) -> None:
    """Store many runs of three agents in all statuses, one second apart, some with a retry, and analyze the tables."""
    statuses = "CASE n % 6 WHEN 0 THEN 'due' WHEN 1 THEN 'running' WHEN 2 THEN 'waiting' WHEN 3 THEN 'failed' "
    location.execute(
        f"{NUMBERS.format(number=number)} INSERT INTO runs (id, agent, status, fence, lease_owner, lease_until, "
        "due_at, idempotency_key, request, request_digest, created_at, updated_at) "
        f"SELECT 'run-' || n, 'agent-' || (n % 3), {statuses} WHEN 4 THEN 'cancelled' ELSE 'completed' END, 1, "
        "CASE WHEN n % 6 = 1 THEN 'worker-' || (n % 4) END, CASE WHEN n % 6 = 1 THEN 2e9 END, "
        "CASE WHEN n % 12 = 0 THEN 1e9 END, 'key-' || n, '{\"messages\": []}', '', 1e9 + n, 1e9 + n FROM numbers"
    )
    location.execute(
        f"{NUMBERS.format(number=number)} INSERT INTO retries (run_id, attempts, since, failed_at, next_at, seq, "
        "fence, error_type, error) SELECT 'run-' || n, 1, 1e9, 1e9, 2e9, 1, CASE WHEN n % 24 = 0 THEN 1 ELSE 0 END, "
        "'timeout', 'slow' FROM numbers"
    )
    for table in ("runs", "retries"):
        location.execute(f"ANALYZE {table}")


async def all_pages(store: RunStore, **filters: Any) -> list[str]:
    """Return the ids of all pages."""
    page = await store.list_runs(**filters)
    found = ids(page)
    while page.cursor is not None:
        page = await store.list_runs(**filters, cursor=page.cursor)
        found += ids(page)
    return found


async def test_what_a_list_shows(store: RunStore, location: Location) -> None:
    """A list has the newest run first, each with its state, its worker and lease, and on whose behalf it acts."""
    runs = DurableRuns(store, [Agent("helper", model=FunctionModel(lambda _: "done"))], worker="host:1")
    first = await runs.submit("helper", "one", identity=Identity(tenant="acme", principal="ada"), idempotency_key="k")
    claim = await store.claim("host:1", ["helper"], 60)
    assert claim is not None
    location.execute("UPDATE runs SET created_at = created_at - 1")  # SQLite's clock has milliseconds
    second = await runs.submit("helper", "two")
    page = await runs.list()
    assert (ids(page), page.cursor) == ([second, first], None)
    due, running = page.runs
    assert (due.status, due.worker, due.lease_until, due.identity) == ("due", None, None, None)
    assert due.due_at is not None
    assert (running.status, running.worker, running.idempotency_key) == ("running", "host:1", "k")
    assert running.lease_until is not None
    assert running.lease_until > running.updated_at
    assert running.identity == Identity(tenant="acme", principal="ada")
    assert (running.attempts, running.last_error, running.next_attempt_at) == (0, None, None)


async def test_filters(store: RunStore, location: Location) -> None:
    """Each filter leaves out what is not asked for, and several narrow the list down together."""
    await waiting(store, "call", run_id="waits")
    held = await claimed(store, "held")
    await store.submit("keyed", "other", {"messages": [{"role": "user", "parts": ["Réfund 7"]}]}, idempotency_key="k-1")
    await store.submit("due", "agent", None)
    assert sorted(ids(await store.list_runs(status="open"))) == ["due", "held", "keyed", "waits"]
    assert ids(await store.list_runs(status="due", agent="agent")) == ["due"]
    assert ids(await store.list_runs(worker="worker")) == ["held"]
    assert ids(await store.list_runs(worker="worker", status="waiting")) == []
    assert ids(await store.list_runs(key="k-1")) == ["keyed"]
    assert ids(await store.list_runs(key="k-1", agent="agent")) == []
    assert ids(await store.list_runs(text="RÉFUND 7")) == ["keyed"]
    assert ids(await store.list_runs(text="user")) == []  # the role of a message is no text of it
    await store.finish(held, "failed", {"error": "Card declined", "error_type": "tool_error"})
    assert ids(await store.list_runs(text="card")) == ["held"]
    [failed] = (await store.list_runs(status="failed")).runs
    assert (failed.last_error, failed.last_error_type, failed.worker) == ("Card declined", "tool_error", None)
    location.execute("UPDATE runs SET created_at = created_at - 100 WHERE id = 'waits'")
    assert ids(await store.list_runs(older_than=50)) == ["waits"]
    assert ids(await store.list_runs(older_than=500)) == []


async def test_retrying_is_a_view_of_due(store: RunStore, location: Location) -> None:
    """A run whose last pass failed and that is due again is retrying, with its error; not once it has been claimed."""
    claim = await claimed(store, "other")
    await store.submit("plain", "agent", None)
    await store.release(claim, delay=30)
    location.execute(
        "INSERT INTO retries (run_id, attempts, since, failed_at, next_at, seq, fence, error_type, error) "
        f"VALUES ('other', 2, 1, 5, 7, 0, {claim.run.fence}, 'rate_limit', 'too many requests')"
    )
    assert ids(await store.list_runs(status="due")) == ["plain"]
    [run] = (await store.list_runs(status="retrying")).runs
    assert (run.status, run.attempts, run.failed_at, run.next_attempt_at) == ("retrying", 2, 5, 7)
    assert (run.last_error, run.last_error_type) == ("too many requests", "rate_limit")
    assert ids(await store.list_runs(text="MANY REQ")) == ["other"]
    location.execute("UPDATE runs SET fence = fence + 1 WHERE id = 'other'")
    [run] = [run for run in (await store.list_runs(status="due")).runs if run.run_id == "other"]
    assert (run.attempts, run.next_attempt_at) == (2, None)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"status": "open"},
        {"status": "failed"},
        {"status": "queued"},
        {"status": "retrying"},
        {"agent": "agent-1"},
        {"agent": "agent-1", "status": "completed"},
        {"worker": "worker-3"},
        {"text": "run-77"},
        {"older_than": 1.0, "status": "due", "agent": "agent-0"},
    ],
    ids=lambda filters: "-".join(map(str, filters.values())) or "all",
)
async def test_pages_have_each_run_once(store: RunStore, location: Location, filters: dict[str, Any]) -> None:
    """Pages of any size together have each run that is asked for once, newest first, also where few are."""
    fill(location)
    found = await all_pages(store, **filters, limit=100)
    times = [int(run_id.removeprefix("run-")) for run_id in found]
    assert times == sorted(set(times), reverse=True)
    assert await all_pages(store, **filters, limit=37) == found
    expected: dict[str, Any] = {
        "open": lambda n: n % 6 in (0, 1, 2),
        "failed": lambda n: n % 6 == 3,
        "completed": lambda n: n % 6 == 5,
        "queued": lambda n: n % 12 == 6,
        "retrying": lambda n: n % 24 == 0,
        "due": lambda n: n % 24 == 12,
        "agent-0": lambda n: n % 3 == 0,
        "agent-1": lambda n: n % 3 == 1,
        "worker-3": lambda n: n % 6 == 1 and n % 4 == 3,
        "run-77": lambda n: str(n).startswith("77"),
    }
    wanted = [expected[value] for value in filters.values() if isinstance(value, str)]
    assert times == [n for n in range(3000, 0, -1) if all(is_wanted(n) for is_wanted in wanted)]


async def test_a_page_is_bounded(store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks at 1,000 runs, and says with a cursor that there may be more."""
    fill(location)
    looked_at: list[int] = []
    read = Transaction.all

    def counted(self: Transaction, statement: str, /, **parameters: Any) -> Any:
        rows = read(self, statement, **parameters)
        looked_at.append(len(rows) if statement == "list_overviews" else 0)
        return rows

    monkeypatch.setattr(Transaction, "all", counted)
    page = await store.list_runs(text="run-7 ")
    assert (ids(page), sum(looked_at)) == ([], 1000)
    assert page.cursor is not None


@pytest.mark.parametrize("cursor", ["", "!", "bm90aGluZw==", "WzEsIDJd", "W05hTiwgImEiXQ==", "é", "W251bGwsICJhIl0="])
async def test_cursors_are_checked(store: RunStore, cursor: str) -> None:
    """A wrong cursor raises ConfigError that names the argument."""
    with pytest.raises(ConfigError, match=r"list\(cursor="):
        await store.list_runs(cursor=cursor)


@pytest.mark.parametrize("filters", [{"status": "lost"}, {"limit": 0}, {"limit": 501}, {"older_than": -1.0}], ids=str)
async def test_filters_are_checked(store: RunStore, filters: dict[str, Any]) -> None:
    """A filter with a value that cannot occur raises ConfigError."""
    with pytest.raises(ConfigError):
        await store.list_runs(**filters)


FILTERS: dict[str, Any] = {"agent": "agent-1", "older_than": 1.0, "worker": "worker-1", "key": "key-7", "text": "run-7"}
STATUSES = (None, "open", "due", "retrying", "running", "completed", "failed")


async def test_no_plan_scans_a_table(store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """The databases follow indexes, whatever a list is asked for."""
    fill(location, 20_000)
    used: dict[tuple[str, str], dict[str, Any]] = {}
    read = Transaction.all

    def noted(self: Transaction, statement: str, /, **parameters: Any) -> Any:
        used.setdefault((statement, str(parameters.get("status"))), parameters)  # of the first page
        return read(self, statement, **parameters)

    monkeypatch.setattr(Transaction, "all", noted)
    for count in range(len(FILTERS) + 1):
        for names in itertools.combinations(FILTERS, count):
            for status in STATUSES:
                await store.list_runs(status=status, **{name: FILTERS[name] for name in names})  # type: ignore[arg-type]
    used.pop(("read_clock", "None"))
    dialect = statements("sqlite" if location.server is None else "postgres")
    assert {name for name, _ in used} == {
        "newest", "newest_of_status", "newest_of_agent", "newest_of_key", "newest_of_worker", "newest_open",
        "list_overviews",
    }  # fmt: skip
    for (name, _), parameters in used.items():
        plan = location.plan(dialect[name], parameters)
        text = "\n".join(plan)
        assert "Seq Scan" not in text, (name, text)
        assert not [line for line in plan if line.startswith(("SCAN runs", "SCAN retries"))], (name, text)
        if name not in ("newest", "newest_open", "list_overviews"):  # which sort what they have found by indexes
            assert "Sort" not in text, (name, text)
            assert "TEMP B-TREE" not in text, (name, text)
