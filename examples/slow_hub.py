"""A slow tool hub behind a cache, with an objective: how it looks in a trace, and which run waits for it."""

import sys
from functools import partial

import anyio

from pellucid import Agent, DiscoveryProvider, Identity, Tool, ToolCall
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.console import Console


async def search(arguments: dict[str, str], ctx: object) -> str:
    """Pretend to search."""
    return f"3 tickets about {arguments.get('query', 'everything')}"


hub = FakeHub([Tool(name="search_tickets", description="Search tickets.", run=search)], latency=0.3)
tickets = DiscoveryProvider(hub, id="tickets", ttl=60, objective=0.1, stale_while_revalidate=300)


async def main() -> None:
    """Run two agents of one tenant at the same time: they share one fetch from the hub."""
    async with anyio.create_task_group() as runs:
        for name in ("triage", "support"):
            model = ScriptedModel(ToolCall("search_tickets", {"query": "login"}), "There are 3.")
            agent = Agent(name, model=model, providers=[tickets])
            runs.start_soon(partial(agent.run, "How many?", identity=Identity(tenant="acme")))
    print(f"the hub was asked {len(hub.calls)} time(s)")


telemetry = configure("tickets", console=Console(stream=sys.stdout))
anyio.run(main)
telemetry.shutdown()
