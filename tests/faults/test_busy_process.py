"""A process with more to do than its event loop can: its hubs are not blamed for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pellucid_exporters.alerting.hubs import BURNS
from pellucid_exporters.alerting.thresholds import Thresholds
from support.processes import command, run_python

PAGE = BURNS[0].limit(Thresholds(), Thresholds().slow_budget)
"""Share of late requests that pages."""

SERVER = """
import asyncio, json

DELAYS = {b"/quick": 0.12, b"/slow": 0.9}


async def serve(reader, writer):
    try:
        while True:
            path = (await reader.readuntil(b"\\r\\n\\r\\n")).split()[1]
            await asyncio.sleep(DELAYS[path])
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\n[\\"go\\"]")
    except asyncio.IncompleteReadError:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

STARVED = """
import json, sys, time

import anyio, httpx

from pellucid import Agent, DiscoveryProvider, Identity, Tool, ToolCall, semconv
from pellucid.testing import FunctionModel
from pellucid_exporters.testing import capture

backend, runs, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Hub:
    def __init__(self, path):
        self.path = path
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, limits=httpx.Limits())

    async def fetch_catalog(self, ctx):
        answer = await self.client.get(self.path)
        return [Tool(name=f"{self.path[1:]}_{name}", run=go) for name in answer.json()]

    async def aclose(self):
        await self.client.aclose()


async def go(arguments, ctx):
    for _ in range(3):  # the work of others in this process
        until = time.perf_counter() + 0.0001
        while time.perf_counter() < until:
            pass
        await anyio.lowlevel.checkpoint()
    return "gone"


def answer(request):
    return "done" if len(request.messages) > 4 else ToolCall("work", {})


async def main():
    hubs = [
        DiscoveryProvider(Hub(f"/{name}"), id=name, ttl=0, objective=0.3, timeout=None) for name in ("quick", "slow")
    ]
    work = Tool(name="work", run=go)
    agent = Agent("busy", model=FunctionModel(answer), tools=[work], providers=hubs)
    for number in range(10):  # connect
        await run(agent, Identity(tenant=f"t{number}"))
    async with anyio.create_task_group() as tasks:
        for number in range(runs):
            tasks.start_soon(run, agent, Identity(tenant=f"t{number % 10}"))
    for hub in hubs:
        await hub.aclose()


async def run(agent, identity):
    await agent.run("go", identity=identity)


with capture(fixed=False) as telemetry:
    anyio.run(main, backend=backend)
    late, every = {}, {}
    for point in telemetry.metrics:
        name = point.attributes.get(semconv.PROVIDER_ID)
        if point.name == semconv.HUB_OVER_OBJECTIVE.name:
            late[name] = late.get(name, 0) + point.value
        if point.name == semconv.HUB_LISTING_DURATION.name:
            every[name] = every.get(name, 0) + point.count
    print(json.dumps({name: [late[name], every[name]] for name in every}))
"""


@contextmanager
def hub_server() -> Iterator[int]:
    """Start a process with a hub that answers within 120 ms, and one that takes 900."""
    with subprocess.Popen(command(SERVER), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize(("backend", "runs"), [("asyncio", 1000), ("trio", 400)])
def test_a_starved_process_pages_for_slow_hubs_only(backend: str, runs: int) -> None:
    """With an objective of 300 ms: none for a hub that answers in 120, over HTTP; and one for a hub that takes 900.

    A third of each would do on an idle machine; other processes of a busy one delay the hub itself.
    """
    with hub_server() as port:
        counted = json.loads(run_python(STARVED, backend, runs, port).stdout)
    shares = {name: late / every for name, (late, every) in counted.items()}
    assert all(every >= Thresholds().slow_min_round_trips for _, every in counted.values())
    assert shares["quick"] < PAGE < shares["slow"]
