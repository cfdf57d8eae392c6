"""An application of the stack: `python application.py SERVICE SCENE ENDPOINT [PORT]`.

It plays a scene until standard input ends, and obeys `break` and `heal`. It sends everything to the collector at the
endpoint; with a port, Prometheus scrapes its metrics there instead. It prints the URL of its metrics, or the endpoint.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread

from pellucid import Agent, Context, DiscoveryProvider, Message
from pellucid.durable import NATSQueue, open_store
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import MetricLimits, Otlp, Prometheus, TailSampling, configure
from pellucid_exporters.telemetry import Telemetry
from support import alert_scenes
from support.dashboard_scenes import Durable, Hub, Messages, ToolServer, Trouble, changing, connecting, normal

SAMPLED = "sampled"
"""The service of which only failed runs are sent."""
CROWDED = "crowded"
"""The service with more hubs than it may have series, while it is broken."""


async def show_everything(telemetry: Telemetry) -> None:
    """Give every series of the dashboards data, again and again."""
    hub, trouble = Hub(), Trouble(telemetry)
    late = DiscoveryProvider(FakeHub(latency=0.1), id="late", ttl=0, patience=0.01)
    with TemporaryDirectory() as folder:
        async with (
            open_store(f"sqlite:///{folder}/runs.db") as store,
            NATSQueue(os.environ["NATS_URL"], telemetry=telemetry) as queue,
            anyio.create_task_group() as tasks,
        ):
            durable, messages = Durable(telemetry, store, queue), Messages(telemetry, store, os.environ["NATS_URL"])
            tasks.start_soon(durable.runs.work)
            await messages.once()
            tasks.start_soon(_again, partial(normal, telemetry, hub))
            tasks.start_soon(_again, trouble.once)
            tasks.start_soon(_again, partial(changing, telemetry, hub))
            tasks.start_soon(_again, partial(connecting, telemetry))
            tasks.start_soon(_again, ToolServer(telemetry).once)
            tasks.start_soon(_again, durable.once)
            tasks.start_soon(_again, partial(impatient, telemetry, late))
            tasks.start_soon(_again, partial(frugal, telemetry))
            await anyio.to_thread.run_sync(sys.stdin.read)
            tasks.cancel_scope.cancel()


async def impatient(telemetry: Telemetry, late: DiscoveryProvider) -> None:
    """Run an agent that goes on without a hub, which answers a moment later."""
    await Agent("impatient", model=ScriptedModel("done"), providers=[late], telemetry=telemetry).run("go")


async def frugal(telemetry: Telemetry) -> None:
    """Run an agent whose conversation exceeds its window."""
    history = [Message(role, "word " * 1_000) for role in ("user", "assistant") * 2]
    agent = Agent("frugal", model=ScriptedModel("ok"), context=Context(window=9_000), telemetry=telemetry)
    await agent.run("word " * 2_000, history=history)


async def _again(once: Any) -> None:
    while True:
        await once()
        await anyio.sleep(alert_scenes.PAUSE)


def main(service: str, scene: str, endpoint: str, port: str = "") -> None:
    """Be an application."""
    prometheus = Prometheus(host="127.0.0.1", port=int(port)) if port else None
    sampling = TailSampling(share=0.0) if service == SAMPLED else None
    otlp = Otlp(endpoint=endpoint, metrics=prometheus is None)
    limits = MetricLimits(series=alert_scenes.FEW) if scene == CROWDED else None
    telemetry = configure(service, prometheus=prometheus, otlp=otlp, tail_sampling=sampling, metric_limits=limits)
    print(telemetry.prometheus_url or endpoint, flush=True)
    if scene == "everything":
        anyio.run(show_everything, telemetry)
    else:
        anyio.run(alert_scenes.serve, scene)
    telemetry.shutdown(10.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
