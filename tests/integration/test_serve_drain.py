"""`pellucid worker` and `pellucid serve` at SIGTERM while tools run, as processes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio
import httpx
import psycopg
import pytest

from integration.test_serve import started, wait_for
from pellucid.durable import DurableRuns, RunState, open_store
from support.durable_agents import results
from support.ports import free_port
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import Location

pytestmark = pytest.mark.integration

AGENT = """
import anyio
from pellucid import Agent, Tool, ToolCall
from pellucid.testing import FunctionModel

async def effect(_arguments, _ctx):
    print("effect begins", flush=True)
    await anyio.sleep({seconds})
    return "effect"

tool = Tool(name="effect", run=effect, timeout=900)
calls = [ToolCall("effect", {{}}, "c-1"), ToolCall("effect", {{}}, "c-2"), "done"]
agent = Agent("a", model=FunctionModel(lambda request: calls[len(request.messages) // 2]), tools=[tool])
"""


def url_of(location: Location) -> str:
    """Return the URL of an empty store, without further options."""
    if location.server is None:
        return location.url
    name = f"drain_{uuid4().hex[:12]}"
    with psycopg.connect(location.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return location.url.replace("@/postgres?", f"@/{name}?")


async def submit(url: str) -> None:
    """Submit a run."""
    async with open_store(url) as store:
        await DurableRuns(store, []).submit("a", "go", run_id="run")


async def state_of(url: str) -> tuple[RunState, list[str]]:
    """Return the state of the run, and the steps in its journal."""
    async with open_store(url) as store:
        steps = [entry.key.split(":")[0] for entry in await store.steps("run")]
        return await DurableRuns(store, []).status("run"), steps


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_tool_ends_and_another_process_goes_on(location: Location, tmp_path: Path, command: str) -> None:
    """A tool that has begun at SIGTERM ends and is journalled, and another process goes on without repeating it."""
    url = url_of(location)
    (tmp_path / "drained.py").write_text(AGENT.format(seconds=2))
    anyio.run(submit, url)
    options = f"--port {free_port()}" if command == "serve" else ""
    with started(f"pellucid {command} drained:agent {options} --store '{url}' --drain-timeout 3.9", tmp_path) as first:
        wait_for(first, "effect begins")
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE) == 0
        assert first.stdout is not None
        assert "effect begins" not in first.stdout.read()
    state, steps = anyio.run(state_of, url)
    assert (state.status, steps[-1]) == ("due", "result")
    with started(f"pellucid worker drained:agent --store '{url}'", tmp_path) as second:
        wait_for(second, "effect begins")
        second.send_signal(signal.SIGTERM)  # the run ends within the first half of the time
        assert second.wait(PATIENCE) == 0
    state, _ = anyio.run(state_of, url)
    assert (state.output, results(state)) == ("done", {"c-1": "effect", "c-2": "effect"})


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_second_signal_is_at_once(tmp_path: Path, command: str) -> None:
    """A second signal ends a worker or server at once: the run is given back, and the process exits with 0."""
    url = f"sqlite:///{tmp_path}/durable.db"
    (tmp_path / "drained_never.py").write_text(AGENT.format(seconds=600))
    anyio.run(submit, url)
    port = free_port()
    options = f"--port {port}" if command == "serve" else f"--metrics-port {port}"
    with started(f"pellucid {command} drained_never:agent {options} --drain-timeout 900", tmp_path) as process:
        wait_for(process, "effect begins")
        process.send_signal(signal.SIGTERM)
        if command == "worker":
            while httpx.get(f"http://127.0.0.1:{port}/readyz").text != "draining":
                pass
        else:
            wait_for(process, "Finished server process")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    state, steps = anyio.run(state_of, url)
    assert (state.status, steps[-1]) == ("due", "started")


def test_probes_of_a_worker(tmp_path: Path) -> None:
    """A worker's probes, on the port of the metrics, fail while its event loop does not run."""
    block = "    __import__('time').sleep(600)  #"
    (tmp_path / "probed.py").write_text(AGENT.format(seconds=0).replace("    await anyio", f"{block} await anyio"))
    url = f"sqlite:///{tmp_path}/durable.db"
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with started(f"pellucid worker probed:agent --metrics-port {port}", tmp_path) as worker:
        wait_for(worker, "working on a in")
        ready, alive, metrics = (httpx.get(f"{base}/{path}", timeout=30) for path in ("readyz", "healthz", "metrics"))
        assert [(answer.status_code, answer.text) for answer in (ready, alive)] == [(200, "ok")] * 2
        assert "pellucid_durable_callback_age_seconds" in metrics.text
        anyio.run(submit, url)
        wait_for(worker, "effect begins")
        ready, alive = (httpx.get(f"{base}/{path}", timeout=30) for path in ("readyz", "healthz"))
        assert [answer.status_code for answer in (ready, alive)] == [503, 503]
        assert alive.text == "the event loop does not answer"
