"""The rules in a real Prometheus that scrapes real runs, with classic and with native histograms."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_dashboards.rules import Thresholds, render
from pellucid_exporters import configure
from pellucid_exporters.options import Prometheus
from support.prometheus_server import PrometheusServer, prometheus_server, scrape_config

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.prometheus]

THRESHOLDS = Thresholds(hanging_after=1.0, slow_min_round_trips=5.0, cache_misses_min=1e6)  # nothing is cached here
RATIO = "pellucid:discovery_over_objective:ratio_rate1h"


def firing(server: PrometheusServer) -> dict[tuple[str, str], float]:
    """Return the alerts that fire, but for the one that always does, and the hubs that they name."""
    found = server.api("alerts")["alerts"]
    return {
        (alert["labels"]["alertname"], alert["labels"].get("pellucid_provider_id", "")): float(alert["value"])
        for alert in found
        if alert["state"] == "firing" and alert["labels"]["alertname"] != "Watchdog"
    }


def shares(server: PrometheusServer) -> dict[str, float]:
    """Return the share of slow discoveries, by hub."""
    found = server.query(RATIO)
    return {each["metric"]["pellucid_provider_id"]: float(each["value"][1]) for each in found}


def watching(telemetry: Telemetry, rules: Path) -> dict[str, Any]:
    """Return the configuration of a server that scrapes the telemetry and evaluates the rules."""
    assert telemetry.prometheus_url is not None
    return {
        "global": {"evaluation_interval": "250ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [scrape_config(telemetry.prometheus_url)],
    }


async def work(telemetry: Telemetry, provider: DiscoveryProvider) -> None:
    """Run an agent again and again, until that is cancelled."""
    while True:
        agent = Agent("main", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry)
        await agent.run("go")


async def test_histograms_of_another_kind_are_not_new(tmp_path: Path) -> None:
    """Prometheus is told to keep native histograms: what was measured long before has not happened just now."""
    rules = tmp_path / "rules.yml"
    rules.write_text(render(scale=0.01))
    count = "pellucid_tool_discovery_duration_seconds"
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    try:
        provider = DiscoveryProvider(FakeHub(), id="hub", ttl=0)
        for _ in range(50):
            await Agent("main", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry).run("go")
        ask = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
        for name, features in ((f"{count}_count", []), (count, ["native-histograms"])):
            with prometheus_server(watching(telemetry, rules), features=features, storage=tmp_path / "data") as server:
                await ask(server.until, partial(server.query, f"{name} offset 4s"))  # longer than the window
                seen = await ask(server.query, "max_over_time(pellucid:discoveries:increase5m[2m])")
                assert [float(each["value"][1]) for each in seen] == [0.0]
    finally:
        telemetry.shutdown()


@pytest.mark.parametrize("features", [[], ["native-histograms"]], ids=["classic", "native"])
async def test_hubs_that_misbehave_are_told_of(features: list[str], tmp_path: Path) -> None:
    """A slow hub fires as slow, one that hangs before any of its fetches has ended, and nothing else does.

    The objective of the slow one lies in the same bucket as its round trips.
    """
    rules = tmp_path / "rules.yml"
    rules.write_text(render(THRESHOLDS, scale=0.01))
    hubs = {
        "quick": DiscoveryProvider(FakeHub(), id="quick", ttl=0, objective=0.5),
        "slow": DiscoveryProvider(FakeHub(latency=0.45), id="slow", ttl=0, objective=0.21),
        "careless": DiscoveryProvider(FakeHub(latency=0.15), id="careless", ttl=0),
        "hangs": DiscoveryProvider(FakeHub(latency=600), id="hangs", timeout=600, objective=0.1),
    }
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    try:
        config = watching(telemetry, rules)
        with prometheus_server(config, features=["exemplar-storage", *features]) as server, anyio.fail_after(200):
            ask = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
            async with anyio.create_task_group() as tasks:
                for provider in hubs.values():
                    tasks.start_soon(work, telemetry, provider)
                wanted = {("ToolHubSlow", "slow"), ("ToolHubSilent", "hangs")}
                await ask(partial(server.until, lambda: wanted <= set(firing(server)), timeout=80))
                # Prometheus extrapolates from the first scrapes, and for native histograms differently.
                expected = {"slow": pytest.approx(1.0, abs=0.01), "quick": pytest.approx(0.0, abs=0.01)}
                await ask(partial(server.until, lambda: shares(server) == expected, timeout=80))
                alerts = await ask(firing, server)
                ended = await ask(
                    server.value, 'pellucid:discovery_round_trips:increase1h{pellucid_provider_id="hangs"}'
                )
                tasks.cancel_scope.cancel()
            assert set(alerts) == wanted
            assert ended is None
            groups = (await ask(server.api, "rules"))["groups"]
            assert [rule["lastError"] for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []
            assert not [line for line in server.log if "discarded" in line]
    finally:
        telemetry.shutdown()
