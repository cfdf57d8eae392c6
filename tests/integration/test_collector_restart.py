"""A collector that goes away for ten seconds in the middle of two hundred runs, and comes back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import semconv
from pellucid_exporters.options import Otlp, Prometheus, Settings
from pellucid_exporters.pipeline import build
from support.burst import ITERATIONS, RUNS, burst
from support.openmetrics import scrape
from support.otlp_receiver import otlp_receiver
from support.rotel_agent import agent_before

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters.telemetry import Telemetry

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPANS = RUNS * (1 + 4 * ITERATIONS - 1)
"""Of a run: its own, and four of each iteration but the last, which calls no tool."""

OUTAGE = 10.0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_outage_costs_no_run_and_what_it_costs_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All runs come to their answers; each span has arrived or is counted as dropped, and later ones arrive again."""
    caplog.set_level(logging.CRITICAL)
    with otlp_receiver("http/protobuf") as receiver, agent_before(receiver.endpoint, tmp_path) as agent:
        settings = Settings(
            service_name="burst",
            otlp=Otlp(endpoint=agent.endpoint, logs=False, metric_interval=3600),
            prometheus=Prometheus(port=0),
        )
        telemetry = build(settings)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.pause, 2, OUTAGE)
            taken = await burst(telemetry)
        await anyio.to_thread.run_sync(telemetry.flush, 30.0)
        lost = await anyio.to_thread.run_sync(dropped, telemetry)
        await anyio.to_thread.run_sync(telemetry.shutdown, 10.0)
        await anyio.to_thread.run_sync(agent.stop)  # it passes on what it has taken
    arrived = {span.span_id for span in receiver.spans}
    assert len(taken) == RUNS
    # A request that broke off may have been taken all the same: then its spans have arrived and are counted as lost.
    assert len(arrived) + lost >= SPANS
    assert len(arrived) > SPANS / 2
    assert len([span for span in receiver.spans if span.name == "invoke_agent burst"]) > RUNS / 2


def dropped(telemetry: Telemetry) -> int:
    """Return how many spans `/metrics` says were dropped."""
    family = scrape(telemetry.prometheus_url).get(semconv.TELEMETRY_DROPPED.name.replace(".", "_"))
    samples = family.samples if family is not None else []
    return int(sum(sample.value for sample in samples if sample.labels["pellucid_telemetry_part"] == "span"))
