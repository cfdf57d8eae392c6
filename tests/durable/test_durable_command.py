"""`pellucid durable`: tables and JSON of runs, what an operator does to them, and what the doctor finds."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, Identity, Tool, ToolCall
from pellucid.durable import DurableRuns
from pellucid.testing import FunctionModel
from pellucid_commands.durable.command import COMMAND
from pellucid_commands.serving import options as serving_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pellucid import ModelRequest, ToolContext
    from support.stores import Location


async def enqueue(arguments: Any, ctx: ToolContext) -> None:
    """Leave the work to another process."""


def answer(request: ModelRequest) -> Any:
    """Hand a call over and ask for an approval, or answer."""
    if len(request.messages) > 1 or "wait" not in str(request.messages[0]):
        return "done"
    return [ToolCall("job", {}, "c1"), ToolCall("pay", {"amount": 7}, "c2")]


TOOLS = [
    Tool(name="job", run=enqueue, execution="external-dispatch", pending="wait", expires_in=3600),
    Tool(name="pay", run=enqueue, needs_approval=True),
]
AGENT = Agent("shop", model=FunctionModel(answer), tools=TOOLS)


@pytest.fixture
def store_url(location: Location, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a store on each database, which commands open in the schema of this test."""
    within(location, nothing)
    monkeypatch.setattr(serving_options, "open_store", lambda _: location.open())
    return location.url


async def nothing(runs: DurableRuns) -> None:
    """Do nothing, in a store that was opened."""


def within(location: Location, work: Callable[[DurableRuns], Awaitable[Any]]) -> Any:
    """Return what a function does with durable runs of the store."""

    async def main() -> Any:
        async with location.open() as store:
            return await work(DurableRuns(store, [AGENT], worker="host:1"))

    return anyio.run(main)


async def submit(runs: DurableRuns, text: str, **options: Any) -> str:
    """Submit a run and work on it; return its id."""
    run_id = await runs.submit("shop", text, **options)
    await runs.work_until_idle()
    return run_id


def call(url: str, *arguments: str) -> int:
    """Run an action; return the exit code."""
    parser = ArgumentParser(prog="pellucid durable")
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args([*arguments, "--store", url]))


def test_list(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` prints a table or JSON, with filters and cursors, and exits with 1 if no run matches."""
    assert call(store_url, "list") == 1
    assert capsys.readouterr().out == "no run matches\n"
    first = within(location, partial(submit, text="wait", identity=Identity(tenant="acme")))
    location.execute("UPDATE runs SET created_at = created_at - 7200")
    second = within(location, partial(submit, text="go\x1b[31m", idempotency_key="k-7"))
    assert call(store_url, "list") == 0
    title, newest, oldest = capsys.readouterr().out.splitlines()
    assert title.split() == ["RUN", "SUBMITTED", "AGENT", "STATUS", "PASS", "WAITS", "FOR", "WORKER", "TRIES", "ERROR"]
    assert newest.split()[0] == second
    assert {first, "waiting", "2"} <= set(oldest.split())
    assert call(store_url, "list", "--limit", "1", "--json") == 0
    page = json.loads(capsys.readouterr().out)
    assert [run["id"] for run in page["runs"]] == [second]
    assert call(store_url, "list", "--cursor", page["cursor"], "--json") == 0
    page = json.loads(capsys.readouterr().out)
    assert ([run["id"] for run in page["runs"]], page["cursor"]) == ([first], None)
    assert page["runs"][0]["tenant"] == "acme"
    for filters in (["--status", "open", "--older-than", "1h"], ["--text", "WAIT"]):
        assert call(store_url, "list", "--json", *filters) == 0
        assert [run["id"] for run in json.loads(capsys.readouterr().out)["runs"]] == [first]
    assert call(store_url, "list", "--key", "k-7", "--agent", "other") == 1
    with pytest.raises(ConfigError, match=r"list\(cursor="):
        call(store_url, "list", "--cursor", "x")


def test_show_and_events(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` and `events` print what a run waits for and its events, as lines and JSON; an unknown run exits with 1."""
    run_id = within(location, partial(submit, text="wait"))
    assert call(store_url, "show", run_id) == 0
    shown = capsys.readouterr().out
    assert "waiting, pass 2" in shown
    assert "waits for       external job async_tool_" in shown
    assert "waits for       approval pay approval_" in shown
    assert call(store_url, "show", run_id, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {call["toolName"]: call["kind"] for call in document["waitsFor"]} == {"job": "external", "pay": "approval"}
    assert (document["status"], document["journal"]["answers"]) == ("waiting", 1)
    assert call(store_url, "events", run_id, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"step.answer", "run.waiting"} <= {event["type"] for event in events}
    assert call(store_url, "events", run_id, "--after", str(events[-2]["seq"])) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "run.waiting" in line
    for action in ("show", "events"):
        assert call(store_url, action, "nothing") == 1
        assert "no run nothing" in capsys.readouterr().out


def test_calls(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`calls` lists the oldest first, of a tool or a kind, with their runs, and exits with 1 if no run waits."""
    assert call(store_url, "calls") == 1
    assert capsys.readouterr().out == "no run waits for such a call\n"
    run_id = within(location, partial(submit, text="wait"))
    location.execute("UPDATE calls SET created_at = created_at - 60")
    within(location, partial(submit, text="wait"))
    assert call(store_url, "calls", "--kind", "external") == 0
    title, oldest, _ = capsys.readouterr().out.splitlines()
    assert title.split() == ["CALL", "RUN", "TOOL", "SINCE", "UNTIL", "SENT", "HEARTBEAT"]
    assert oldest.split()[1:3] == [run_id, "job"]
    assert call(store_url, "calls", "--tool", "pay", "--limit", "1", "--json") == 0
    [approval] = json.loads(capsys.readouterr().out)["calls"]
    assert (approval["runId"], approval["kind"], approval["dispatchedAt"]) == (run_id, "approval", None)
    assert call(store_url, "calls", "--tool", "other") == 1


def test_a_run_is_settled_decided_cancelled_and_retried(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each action prints its outcome, and exits with 1 if the store has refused."""
    run_id = within(location, partial(submit, text="wait"))
    assert call(store_url, "show", run_id, "--json") == 0
    ids = {call["toolName"]: call["resultId"] for call in json.loads(capsys.readouterr().out)["waitsFor"]}
    settle = ("settle", ids["job"], "--output")
    assert [call(store_url, *settle, '{"ok": true}'), call(store_url, *settle, "1")] == [0, 1]
    assert capsys.readouterr().out.splitlines() == [
        f"{ids['job']} settled: the run waits for 1 more",
        f"{ids['job']} conflict: there is another one, which counts",
    ]
    assert call(store_url, "settle", "async_tool_none", "--error", "lost") == 1
    assert call(store_url, "decide", run_id, ids["pay"], "--deny", "--reason", "too much", "--as", "olga") == 0
    assert f"{ids['pay']} settled: the run goes on" in capsys.readouterr().out
    decided = within(location, lambda runs: runs.call(ids["pay"]))
    assert (decided.output["decided_by"], decided.output["approved"]) == ("olga", False)
    assert [call(store_url, "cancel", run_id), call(store_url, "cancel", run_id)] == [0, 1]
    assert [call(store_url, "retry", run_id), call(store_url, "retry", run_id)] == [0, 1]
    assert [call(store_url, action, "nothing") for action in ("cancel", "retry")] == [1, 1]
    within(location, lambda runs: runs.work_until_idle())
    assert within(location, lambda runs: runs.status(run_id)).status == "completed"


def test_the_beginning_of_an_id_is_enough(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """The beginning of an id that Pellucid has made is enough if it is the only one; other ids are given whole."""
    run_id = within(location, partial(submit, text="wait"))
    assert call(store_url, "show", run_id[:6], "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    ids = {call["toolName"]: call["resultId"] for call in shown["waitsFor"]}
    assert shown["id"] == run_id
    assert call(store_url, "settle", ids["job"][:-8], "--output", "1") == 0
    assert call(store_url, "decide", run_id[:6], ids["pay"][:-8], "--approve", "--as", "olga") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{ids['job']} settled: the run waits for 1 more",
        f"{ids['pay']} settled: the run goes on",
    ]
    assert call(store_url, "settle", ids["job"][:-8], "--output", "2") == 1
    assert f"{ids['job']} conflict" in capsys.readouterr().out
    assert [call(store_url, action, run_id[:6]) for action in ("cancel", "retry", "events")] == [0, 0, 0]
    assert f"run {run_id} is due" in capsys.readouterr().out
    for chosen in ("order-7", "abcdef", "abcdef1"):
        within(location, partial(submit, text="go", run_id=chosen))
    assert [call(store_url, "show", start) for start in (run_id[:3], "order", "abcde", "abcdef")] == [1, 1, 1, 0]
    location.execute(f"UPDATE runs SET id = '{'abcdef00' * 4}' WHERE id = 'order-7'")
    assert call(store_url, "show", "abcdef", "--json") == 0
    location.execute(f"UPDATE runs SET id = '{'abcdef01' * 4}' WHERE id = 'abcdef1'")
    with pytest.raises(ConfigError, match="'abcdef0' is the beginning of several ids; give more of it: abcdef00"):
        call(store_url, "cancel", "abcdef0")


def test_the_beginning_of_the_id_of_a_call(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four characters after the kind are enough if no other call begins so; fewer are refused, with the reason."""
    run_id = within(location, partial(submit, text="wait"))
    for start in ("async", "async_tool_", "async_tool_47", "approval_4-7"):
        kind = "approval_" if start.startswith("approval") else "async_tool_"
        with pytest.raises(ConfigError, match=f"'{start}' is too short: give at least four characters after {kind}$"):
            call(store_url, "settle", start, "--output", "1")
    assert call(store_url, "settle", "async_tool_zzzz", "--output", "1") == 1
    assert "async_tool_zzzz unknown: the store has no such call" in capsys.readouterr().out
    assert call(store_url, "decide", run_id, "approval_x", "--approve", "--as", "olga") == 1
    said = f"approval_x unknown: the run has no such approval; see: pellucid durable show {run_id}\n"
    assert capsys.readouterr().out == said
    location.execute("UPDATE calls SET id = 'async_tool_47ab' || substr(id, 16) WHERE kind = 'external'")
    assert call(store_url, "settle", "async_tool_47ab", "--output", "1") == 0
    within(location, partial(submit, text="wait"))
    location.execute("UPDATE calls SET id = 'async_tool_47ab' || substr(id, 16) WHERE kind = 'external'")
    with pytest.raises(ConfigError, match="'async_tool_47ab' is the beginning of several ids"):
        call(store_url, "settle", "async_tool_47ab", "--output", "1")


def test_several_at_once(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """Several calls or runs are settled, cancelled or retried at once; the exit code is 1 if one of them was not."""
    ids = [within(location, partial(submit, text="wait", conversation_id=chat)) for chat in ("a", "b")]
    assert call(store_url, "calls", "--tool", "job", "--json") == 0
    jobs = [each["resultId"] for each in json.loads(capsys.readouterr().out)["calls"]]
    assert call(store_url, "settle", *jobs, "--error", "The carrier is down.", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"calls": [{"id": job, "outcome": "settled"} for job in jobs]}
    assert call(store_url, "settle", *jobs, "--error", "Another reason.") == 1
    assert call(store_url, "cancel", *ids) == 0
    within(location, lambda runs: runs.submit("shop", "go", conversation_id="b"))
    capsys.readouterr()
    assert call(store_url, "retry", *ids, "--json") == 1
    outcomes = [{"id": ids[0], "outcome": "due"}, {"id": ids[1], "outcome": "busy"}]
    assert json.loads(capsys.readouterr().out) == {"runs": outcomes}
    assert call(store_url, "retry", ids[1]) == 1
    assert "another run is open" in capsys.readouterr().out


def test_what_to_do_next(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` names the command that helps a run, with the option of the store that it needs."""
    run_id = within(location, partial(submit, text="wait"))
    assert call(store_url, "show", run_id) == 0
    shown = capsys.readouterr().out
    assert "next            pellucid durable settle async_tool_" in shown
    assert f"next            pellucid durable decide {run_id} approval_" in shown
    assert shown.endswith("give these commands --store, too, or set PELLUCID_STORE\n")
    monkeypatch.setenv("PELLUCID_STORE", store_url)
    assert call(store_url, "show", run_id) == 0
    assert "--store" not in capsys.readouterr().out
    assert call(store_url, "cancel", run_id) == 0
    assert call(store_url, "show", run_id) == 0
    assert f"pellucid durable retry {run_id}" in capsys.readouterr().out
    assert call(store_url, "retry", run_id) == 0
    assert call(store_url, "show", run_id) == 0
    assert "pellucid durable doctor" in capsys.readouterr().out


def test_what_helps_a_run_that_is_stuck(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` names the doctor if a run has no worker, no result that would be late, and `cancel` in quarantine only."""

    def helps(run_id: str) -> list[str]:
        assert call(store_url, "show", run_id) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.split("pellucid durable ")[1] for line in lines if line.startswith("next ")]

    run_id = within(location, lambda runs: runs.submit("shop", "go"))
    within(location, lambda runs: runs._store.claim("host:9", ["shop"], 60))
    location.execute("UPDATE runs SET expired_leases = 1")
    assert helps(run_id) == []
    location.end_leases()
    assert helps(run_id) == ["doctor"]
    location.execute("UPDATE runs SET expired_leases = 2")
    assert helps(run_id) == ["doctor", f"cancel {run_id}"]
    location.execute("UPDATE runs SET expired_leases = 0, status = 'due', due_at = 4e9, lease_until = NULL, fence = 3")
    location.execute(
        "INSERT INTO retries (run_id, attempts, since, failed_at, next_at, seq, fence, error_type, error) "
        f"VALUES ('{run_id}', 4, 1, 5, 4e9, 0, 3, 'unavailable', 'hub is down')"
    )
    assert helps(run_id) == []
    location.execute("UPDATE runs SET due_at = 7")
    assert helps(run_id) == ["doctor"]
    location.execute("UPDATE runs SET status = 'cancelled'")
    waiting = within(location, partial(submit, text="wait"))
    assert [command.split()[0] for command in helps(waiting)] == ["settle", "decide"]
    location.execute("UPDATE calls SET deadline = 7 WHERE kind = 'external'")
    assert [command.split()[0] for command in helps(waiting)] == ["decide", "doctor"]
    location.execute("UPDATE calls SET deadline = 7")
    assert helps(waiting) == ["doctor"]
    assert call(store_url, "show", waiting) == 0
    assert capsys.readouterr().out.count("past its deadline: a worker has to take it up") == 2


def test_tables_fit_a_terminal(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables in a terminal cut ids to their beginnings, and no other column; programs get ids whole."""
    run_id = within(location, partial(submit, text="wait"))
    location.execute("UPDATE calls SET dispatched_at = NULL")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert [call(store_url, *words) for words in (["calls", "--kind", "external"], ["list"])] == [0, 0]
    _, waiting, _, listed = capsys.readouterr().out.splitlines()
    assert (waiting.split()[1], waiting.split()[-1]) == (run_id[:12], "never")
    assert listed.split()[0] == run_id[:12]


def test_purge(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`purge` says how many runs it would delete, of one status or all, and keeps those that have not ended."""
    done = within(location, partial(submit, text="go"))
    within(location, partial(submit, text="go", conversation_id="chat"))
    gone = within(location, partial(submit, text="wait"))
    within(location, lambda runs: runs.cancel(gone, "not needed"))
    kept = within(location, partial(submit, text="wait"))
    location.execute("UPDATE runs SET created_at = created_at - 864000, updated_at = updated_at - 864000")
    location.execute("UPDATE conversations SET updated_at = updated_at - 864000")
    purge = ("purge", "--older-than", "7d")
    assert call(store_url, *purge, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"runs": 3, "deleted": False}
    assert call(store_url, *purge, "--status", "cancelled") == 0
    assert call(store_url, "purge", "--older-than", "30d") == 0
    assert call(store_url, *purge) == 0
    assert capsys.readouterr().out.splitlines() == ["1 runs deleted", "0 runs deleted", "2 runs deleted"]
    assert [run.run_id for run in within(location, lambda runs: runs.list()).runs] == [kept]
    assert done != kept


def test_drain(store_url: str, location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    """`drain` lists workers and asks those of a name to end; if there is none, it exits with 1 and prints all names."""
    assert call(store_url, "workers") == 1
    assert "pellucid worker MODULE:NAME" in capsys.readouterr().out
    location.execute(
        "INSERT INTO workers (id, name, version, agents, started_at, seen_at, slots) "
        "VALUES ('w', 'host:7', 'v1', '[\"shop\"]', 2e9, 2e9, 8)"
    )
    assert call(store_url, "workers") == 0
    title, listed = capsys.readouterr().out.splitlines()
    assert title.split() == ["WORKER", "VERSION", "SLOTS", "STARTED", "SEEN", "STATE", "AGENTS"]
    assert listed.split()[:3] + listed.split()[-2:] == ["host:7", "v1", "8", "works", "shop"]
    assert call(store_url, "drain", "host:8") == 1
    assert "known are: host:7" in capsys.readouterr().out
    assert call(store_url, "drain", "host:7", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"workers": 1}
    [worker] = within(location, lambda runs: runs.workers())
    assert worker.drain_requested_at is not None
    for seen_at, state in (("2e9", "drains"), ("1", "lost")):
        location.execute(f"UPDATE workers SET seen_at = {seen_at}")
        assert call(store_url, "workers") == 0
        assert capsys.readouterr().out.splitlines()[1].split()[-2:] == [state, "shop"]
    assert call(store_url, "workers", "--json") == 0
    [listed] = json.loads(capsys.readouterr().out)["workers"]
    assert (listed["name"], listed["agents"]) == ("host:7", ["shop"])
    assert listed["drainRequestedAt"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["purge", "--older-than", "soon"],
        ["purge"],
        ["settle", "r"],
        ["settle", "r", "--output", "yes"],
        ["settle", "r", "--output", "1", "--error", "e"],
        ["decide", "r", "a"],
        ["list", "--status", "lost"],
        ["show", "a\x00"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage(store_url: str, arguments: list[str]) -> None:
    """A wrong option or argument exits with 2."""
    with pytest.raises(SystemExit) as ended:
        call(store_url, *arguments)
    assert ended.value.code == 2


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """A store that does not exist is named in the error, and not created."""
    with pytest.raises(ConfigError, match=r"there is no store '.*runs\.db'; check --store"):
        call(f"sqlite:///{tmp_path}/runs.db", "list")
    assert list(tmp_path.iterdir()) == []


WORKER = "INSERT INTO workers (id, name, version, agents, started_at, seen_at, slots) VALUES "


def found(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return what the doctor finds, by kind; check the exit code, and that people get the same."""
    code = call(url, "doctor", "--json")
    troubles = json.loads(capsys.readouterr().out)["troubles"]
    assert call(url, "doctor") == code == int(bool(troubles))
    lines = capsys.readouterr().out.splitlines()
    for trouble in troubles:
        place = lines.index(f"    {trouble['remedy']}")  # after the text, which has an age
        assert lines[place + 1] == f"    $ {trouble['command']}"
    return {trouble["kind"]: trouble for trouble in troubles}


def test_the_doctor_finds_runs_without_workers(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor finds due runs whose agent or version no live worker has, and those that no worker gets to."""
    assert found(store_url, capsys) == {}
    run_id = within(location, lambda runs: runs.submit("shop", "go"))
    assert found(store_url, capsys) == {}  # as while its workers are started anew
    location.execute("UPDATE runs SET due_at = due_at - 20")
    trouble = found(store_url, capsys)["no_worker"]
    assert (trouble["agent"], trouble["number"]) == ("shop", 1)
    # Workers that cannot help: of another agent, dead, draining.
    clock = {"sqlite": "(julianday('now') - 2440587.5) * 86400.0"}.get(
        "sqlite" if location.server is None else "", "extract(epoch FROM now())"
    )
    others = [("o", '["other"]', clock), ("d", '["shop"]', f"{clock} - 31"), ("e", '["shop"]', clock)]
    for name, agents, seen_at in others:
        location.execute(f"{WORKER}('{name}', '{name}', NULL, '{agents}', 0, {seen_at}, 8)")
    location.execute("UPDATE workers SET drain_requested_at = 1 WHERE id = 'e'")
    assert set(found(store_url, capsys)) == {"no_worker"}
    location.execute(f"{WORKER}('l', 'live', '1', '[\"shop\"]', 0, {clock}, 4)")
    assert found(store_url, capsys) == {}
    location.execute(f"INSERT INTO run_versions (run_id, version) VALUES ('{run_id}', '2')")
    trouble = found(store_url, capsys)["no_worker"]
    assert (trouble["version"], trouble["command"]) == ("2", "pellucid worker MODULE:NAME --agents-version 2")
    location.execute("UPDATE run_versions SET version = '1'")
    location.execute("UPDATE runs SET due_at = due_at - 100")
    assert "1 with 4 slots" in found(store_url, capsys)["workers_busy"]["text"]


def test_the_doctor_finds_runs_that_are_stuck(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor finds expired leases, runs in quarantine, passes that fail for long, and callbacks given up."""
    run_id = within(location, lambda runs: runs.submit("shop", "go"))
    within(location, lambda runs: runs._store.claim("host:9", ["shop"], 60))
    assert found(store_url, capsys) == {}
    location.end_leases()
    trouble = found(store_url, capsys)["lease_expired"]
    assert (trouble["run_id"], trouble["worker"], trouble["age"] > 900) == (run_id, "host:9", True)
    location.execute("UPDATE runs SET expired_leases = 2")
    assert found(store_url, capsys)["quarantined"]["attempts"] == 2
    location.execute("UPDATE runs SET expired_leases = 0, status = 'due', due_at = 4e9, lease_until = NULL, fence = 3")
    location.execute(
        "INSERT INTO retries (run_id, attempts, since, failed_at, next_at, seq, fence, error_type, error) "
        f"VALUES ('{run_id}', 4, 1, 5, 4e9, 0, 3, 'unavailable', 'hub is down')"
    )
    trouble = found(store_url, capsys)["retrying"]
    assert (trouble["attempts"], trouble["detail"]) == (4, "hub is down")
    location.execute("DELETE FROM retries")
    location.execute(
        "INSERT INTO callbacks (run_id, url, version, attempts, dead_at, last_error) "
        f"VALUES ('{run_id}', 'https://secret@a', 1, 9, 5, 'refused')"
    )
    trouble = found(store_url, capsys)["callback_dead"]
    assert (trouble["attempts"], trouble["detail"], "secret" in json.dumps(trouble)) == (9, "refused", False)
    assert trouble["command"] == f"pellucid durable callback {run_id}"
    assert [call(store_url, "callback", each) for each in (run_id, "nothing")] == [0, 1]
    assert f"run {run_id} is due to have its state sent" in capsys.readouterr().out
    assert found(store_url, capsys) == {}


def test_the_doctor_finds_calls_that_are_stuck(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor finds a call that was never sent, one past its deadline, and an approval that waits for a day."""
    within(location, partial(submit, text="wait"))
    assert found(store_url, capsys) == {}
    location.execute("UPDATE calls SET dispatched_at = NULL, created_at = created_at - 3600 WHERE kind = 'external'")
    assert found(store_url, capsys)["not_dispatched"]["tool"] == "job"
    location.execute("UPDATE calls SET dispatched_at = created_at, deadline = deadline - 7200 WHERE kind = 'external'")
    assert found(store_url, capsys)["overdue"]["age"] > 3000
    location.execute("UPDATE calls SET created_at = created_at - 90000, deadline = NULL")
    troubles = found(store_url, capsys)
    assert set(troubles) == {"approval_waits"}
    assert "pellucid durable decide" in troubles["approval_waits"]["command"]


def test_the_doctor_finds_a_newer_schema(
    store_url: str, location: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor names a later revision of the schema, which works."""
    location.execute("UPDATE schema_revision SET revision = 99")
    assert "revision 99" in found(store_url, capsys)["newer_schema"]["text"]


def test_a_store_of_an_older_version(location: Location, store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only `migrate` changes the schema of an older store; `migrate --check` prints how."""
    for table in ("retries", "run_versions", "workers", "schema_revision"):
        location.execute(f"DROP TABLE {table}")
    with pytest.raises(ConfigError, match="pellucid durable migrate --check"):
        call(store_url, "list")
    assert call(store_url, "migrate", "--check") == 1
    assert "CREATE TABLE IF NOT EXISTS retries" in capsys.readouterr().out
    assert call(store_url, "migrate", "--check", "--json") == 1
    assert json.loads(capsys.readouterr().out)["revision"] == 4
    assert call(store_url, "migrate") == 0
    assert call(store_url, "migrate", "--check") == 0
    assert "nothing to change" in capsys.readouterr().out
    assert call(store_url, "list") == 1


def test_an_empty_database(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty database is refused, and stays as it is until `migrate` makes a store of it."""
    monkeypatch.setattr(serving_options, "open_store", lambda _: location.open())
    with pytest.raises(ConfigError, match="there is no store"):
        call(location.url, "list")
    assert call(location.url, "migrate", "--check") == 1
    assert call(location.url, "migrate") == 0
    assert call(location.url, "list") == 1
