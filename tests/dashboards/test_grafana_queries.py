"""Every query of every dashboard, executed by the real Prometheus on what real runs left."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import pytest

from pellucid import semconv
from pellucid.durable import NATSQueue, open_store
from pellucid.semconv.servers import ALL_METRICS, SERVER_OBJECTIVE
from pellucid.telemetry.metrics import instruments_of
from pellucid_dashboards.grafana import dashboards
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import BUDGET_SPENT
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus, Settings
from pellucid_exporters.pipeline import build
from pellucid_exporters.sampling.rules import TailSampling
from support.dashboard_queries import panel_queries, queries, variable_queries
from support.dashboard_scenes import Durable, Hub, Messages, ToolServer, Trouble, changing, connecting, normal
from support.nats_server import nats_server
from support.prometheus_server import prometheus_server, scrape_config
from support.promql import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pellucid_exporters import Telemetry
    from support.dashboard_queries import Asked
    from support.nats_server import NATSServer
    from support.prometheus_server import PrometheusServer
    from support.promql import Selector

T = TypeVar("T")

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.prometheus]

PATIENCE: Final = 300.0
"""Seconds until every query has data, on a busy machine; some ten on a quiet one."""

INTERVAL: Final = "2s"
"""Interval and timeout of scrapes: a process with agents on a busy machine takes a while to answer."""

BOARDS: Final = dashboards()
HISTOGRAMS: Final = {series(metric) for metric in ALL_METRICS if metric.kind == "histogram"}
MARKED: Final = ("ModelSlow", "ToolFailing", "ExternalToolStuck", "TelemetryDropping")
"""Alerts that only mark the time when they fire: one for each dashboard without a panel of alerts."""
NOWHERE: Final = Otlp(endpoint="http://127.0.0.1:9", metrics=False, timeout=0.2)
"""Endpoint on which nobody listens, so that items are lost and counted."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that scrape the same runs: one keeps classic histograms, one native ones.

    Attributes:
        filled: Selectors that have matched something on a server, by its URL; most are in several queries.
    """

    classic: PrometheusServer
    native: PrometheusServer
    filled: set[tuple[str, str]] = field(default_factory=set)

    def empty(self, asked: Asked) -> list[str]:
        """Return the names of the servers for which a query has no data."""
        return [name for name, server in self._each() if not server.query(asked.filled_in())]

    def unfilled(self, asked: Asked) -> list[str]:
        """Return the selectors of a query that match nothing where they should."""
        selectors = parse(asked.filled_in())[0]
        return [str(each) for each in selectors if not all(self._fills(server, each) for server in self._keeping(each))]

    def has(self, asked: Asked) -> bool:
        """Return whether a query has data on both servers, by each of its selectors."""
        return not (self.unfilled(asked) or self.empty(asked))

    def _fills(self, server: PrometheusServer, selector: Selector) -> bool:
        known = (server.url, str(selector))
        if known not in self.filled and server.query(str(selector)):
            self.filled.add(known)
        return known in self.filled

    def _each(self) -> list[tuple[str, PrometheusServer]]:
        return [("classic", self.classic), ("native", self.native)]

    def _keeping(self, selector: Selector) -> list[PrometheusServer]:
        if selector.name in HISTOGRAMS:
            return [self.native]
        if any(selector.name == f"{name}{suffix}" for name in HISTOGRAMS for suffix in ("_bucket", "_count", "_sum")):
            return [self.classic]
        return [self.classic, self.native]


@contextmanager
def servers(telemetry: Telemetry, rules: Path | None = None) -> Iterator[Servers]:
    """Scrape the telemetry until the end of the block."""
    assert telemetry.prometheus_url is not None
    config: dict[str, Any] = {
        "global": {"evaluation_interval": INTERVAL},
        "scrape_configs": [scrape_config(telemetry.prometheus_url, interval=INTERVAL)],
        "rule_files": [str(rules)] if rules else [],
    }
    with ExitStack() as stack:
        classic = stack.enter_context(prometheus_server(config, features=["exemplar-storage"]))
        native = stack.enter_context(prometheus_server(config, features=["exemplar-storage", "native-histograms"]))
        yield Servers(classic, native)


def alert_rules(folder: Path) -> Path:
    """Return a file with alerts that fire or are pending, and with what rules record, for panels and for marks."""
    objective = f"max by (job, {label(semconv.PROVIDER_ID)}) ({series(semconv.DISCOVERY_OBJECTIVE)}) > 0"
    served = f"max by (job, {label(semconv.MCP_SERVER_NAME)}) ({series(SERVER_OBJECTIVE)}) > 0"
    labels = {"severity": "ticket"}
    alerts = [
        {"alert": "ToolHubSlow", "expr": objective, "labels": labels},
        {"alert": "ToolHubDown", "expr": objective, "for": "1h", "labels": labels},
        {"alert": "ToolServerSlow", "expr": served, "labels": labels},
        {"alert": "ToolServerHanging", "expr": served, "for": "1h", "labels": labels},
        *({"alert": name, "expr": objective, "labels": labels} for name in MARKED),
    ]
    spent = {"record": BUDGET_SPENT, "expr": f"{objective} * 0"}
    file = folder / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "hubs", "rules": [spent, *alerts]}]}))
    return file


def exemplars_of(server: PrometheusServer, asked: Asked) -> list[dict[str, Any]]:
    """Return the exemplars that a query shows."""
    return server.exemplars(asked.filled_in())


async def ask(question: Callable[[Asked], T], asked: Asked) -> T:
    """Return the answer of a server to a question about a query."""
    return await anyio.to_thread.run_sync(question, asked, abandon_on_cancel=True)


async def test_no_panel_is_empty_in_a_normal_run() -> None:
    """Each panel shows something when nothing is wrong, on classic and on native histograms."""
    panels = {f"{uid}/{title}": asked for uid, board in BOARDS.items() for title, asked in panel_queries(board).items()}
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    hub, tools = Hub(), ToolServer(telemetry)
    try:
        with servers(telemetry) as found:
            deadline = anyio.current_time() + PATIENCE
            while panels:
                assert anyio.current_time() < deadline, list(panels)
                await normal(telemetry, hub)
                await tools.once()
                for panel, asked in list(panels.items()):
                    empty = [await ask(found.empty, each) for each in asked]
                    if all(any(name not in each for each in empty) for name in ("classic", "native")):
                        del panels[panel]
    finally:
        await hub.provider.aclose()
        telemetry.shutdown()


@pytest.fixture
def nats() -> Iterator[NATSServer]:
    """Run a NATS server."""
    with nats_server() as server:
        yield server


async def test_every_query_finds_data(tmp_path: Path, nats: NATSServer) -> None:
    """Each query and variable has data, by each selector, when all goes wrong; a query with misspelt names has none."""
    sampling = TailSampling(share=0.0)
    settings = Settings(service_name="shop", prometheus=Prometheus(port=0), otlp=NOWHERE, tail_sampling=sampling)
    telemetry = build(settings)
    # As an overflow does; thousands of series would make each scrape slow.
    overflows = instruments_of(telemetry.meter_provider).by_name[semconv.TELEMETRY_OVERFLOWS.name]
    overflows.add(1, {semconv.METRIC_NAME: semconv.TOOL_DURATION.name})
    hub, trouble, tools = Hub(), Trouble(telemetry), ToolServer(telemetry)
    left = [asked for board in BOARDS.values() for asked in (*queries(board), *variable_queries(board))]
    misspelt = [each.misspelt() for each in left if each.misspelt() != each]
    assert len(misspelt) > 0.8 * len(left)  # the others ask for series that are not Pellucid's
    try:
        async with (
            open_store(f"sqlite:///{tmp_path}/runs.db") as store,
            NATSQueue(nats.url, telemetry=telemetry) as queue,
            anyio.create_task_group() as tasks,
        ):
            durable, messages = Durable(telemetry, store, queue), Messages(telemetry, store, nats.url)
            tasks.start_soon(durable.runs.work)
            await messages.once()
            with servers(telemetry, alert_rules(tmp_path)) as found:
                deadline = anyio.current_time() + PATIENCE
                while left:
                    assert anyio.current_time() < deadline, (str(left[0]), found.unfilled(left[0]))
                    await normal(telemetry, hub)
                    await tools.once()
                    await trouble.once()
                    await changing(telemetry, hub)
                    await connecting(telemetry)
                    await durable.once()
                    while left and bool(await ask(found.has, left[0])):
                        del left[0]
                assert [str(each) for each in misspelt if not await ask(found.unfilled, each)] == []
            tasks.cancel_scope.cancel()
    finally:
        await hub.provider.aclose()
        await trouble.failing.aclose()
        telemetry.shutdown()


async def test_exemplars_of_queries_lead_to_traces(tmp_path: Path) -> None:
    """Each query that shows exemplars gets some, with the id of a trace, from classic and from native histograms."""
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    hub, tools = Hub(), ToolServer(telemetry)
    left = [each for board in BOARDS.values() for each in queries(board) if each.exemplar]
    assert left
    try:
        with servers(telemetry) as found, anyio.fail_after(PATIENCE):
            async with open_store(f"sqlite:///{tmp_path}/runs.db") as store, anyio.create_task_group() as tasks:
                durable = Durable(telemetry, store)
                tasks.start_soon(durable.runs.work)
                for server, asked in product((found.classic, found.native), left):
                    while not (exemplars := await ask(partial(exemplars_of, server), asked)):
                        await normal(telemetry, hub)
                        await tools.once()
                        await connecting(telemetry)
                        await durable.result()
                    assert all(len(each["labels"]["trace_id"]) == 32 for each in exemplars)
                tasks.cancel_scope.cancel()
    finally:
        await hub.provider.aclose()
        telemetry.shutdown()
