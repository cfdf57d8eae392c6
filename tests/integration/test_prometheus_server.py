"""A real Prometheus scrapes a real run, as OpenMetrics and by protobuf."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, Tool, semconv
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from support.otlp_receiver import attributes_of, otlp_receiver
from support.prometheus_server import prometheus_server, scrape_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid_exporters import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.prometheus]

DISCOVERY = "pellucid_tool_discovery_duration_seconds"
RUNS = 200


async def run_agents(telemetry: Telemetry) -> None:
    """Run many agents on one hub whose round trips take from 5 ms to 0.3 s, most of them little."""
    spread = random.Random(7)

    async def search(arguments: dict[str, Any], ctx: object) -> str:
        return "nothing"

    async def run(latency: float) -> None:
        hub = FakeHub([Tool(name="search", run=search)], latency=latency)
        provider = DiscoveryProvider(hub, id="hub")
        await Agent("main", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry).run("go")
        await provider.aclose()

    for _ in range(4):
        async with anyio.create_task_group() as tasks:
            for _ in range(RUNS // 4):
                tasks.start_soon(run, min(0.3, 0.005 * math.exp(spread.expovariate(1.0))))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of all."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


async def test_both_formats_tell_the_same_truth() -> None:
    """Native p95 is within 5 % of the spans', counts are equal, and exemplars of both lead to exported spans."""
    with otlp_receiver("http/protobuf") as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, metrics=False, logs=False)
        telemetry = configure("shop", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
        try:
            assert telemetry.prometheus_url is not None
            config = {"scrape_configs": [scrape_config(telemetry.prometheus_url)]}
            with (
                prometheus_server(config, features=["exemplar-storage"]) as classic,
                prometheus_server(config, features=["exemplar-storage", "native-histograms"]) as native,
                anyio.fail_after(100),
            ):
                await run_agents(telemetry)
                ask = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
                assert await ask(telemetry.flush, 20.0)
                spans = [span for span in receiver.spans if span.name == "discover_tools hub"]
                assert len(spans) == RUNS
                seconds = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in spans]

                in_classic = f'sum({DISCOVERY}_count{{pellucid_provider_id="hub"}})'
                in_native = f'histogram_count(sum({DISCOVERY}{{pellucid_provider_id="hub"}}))'
                await ask(classic.until, lambda: classic.value(in_classic) == RUNS)
                await ask(native.until, lambda: native.value(in_native) == RUNS)

                true = percentile(seconds, 0.95)
                found = await ask(native.value, f"histogram_quantile(0.95, sum({DISCOVERY}))")
                assert found == pytest.approx(true, rel=0.05)
                total = await ask(native.value, f"histogram_sum(sum({DISCOVERY}))")
                assert total == pytest.approx(sum(seconds), rel=1e-6)

                by_id = {(span.trace_id.hex(), span.span_id.hex()): span for span in receiver.spans}
                for server, selector in ((classic, f"{DISCOVERY}_bucket"), (native, DISCOVERY)):
                    exemplars = await ask(server.until, partial(server.exemplars, selector))
                    for exemplar in exemplars:
                        span = by_id[exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"]]
                        assert attributes_of(span)[semconv.PROVIDER_ID] == "hub"
                        duration = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                        assert float(exemplar["value"]) == pytest.approx(duration, abs=1e-9)
        finally:
            telemetry.shutdown()
