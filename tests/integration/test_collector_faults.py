"""Collectors that are down, slow, busy, or break off: runs do not notice, and what is lost is counted."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent, semconv
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from support.openmetrics import scrape
from support.otlp_receiver import otlp_receiver
from support.ports import free_port
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pellucid_exporters.telemetry import Telemetry

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPANS = 4
"""Spans of a run that asks the model once."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@contextmanager
def sending_to(endpoint: str, *, timeout: float = 0.5) -> Iterator[Telemetry]:
    """Send spans and log records there, and serve metrics."""
    otlp = Otlp(endpoint=endpoint, timeout=timeout, metrics=False)
    telemetry = configure("s", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
    try:
        yield telemetry
    finally:
        telemetry.shutdown(0.2)


@contextmanager
def listening(treat: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections and treat each as told; yield the base URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                treat(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in kept:
            connection.close()


def never_answer(connection: socket.socket) -> None:
    """Take the request, and that is all."""


def break_off(connection: socket.socket) -> None:
    """Close in the middle of the request."""
    connection.recv(16)
    connection.close()


def answer_nonsense(connection: socket.socket) -> None:
    """Speak another protocol."""
    connection.recv(16)
    connection.sendall(b"220 mail.example.com ready\r\n")
    connection.close()


def lost(telemetry: Telemetry) -> dict[str, int]:
    """Return what `/metrics` says was dropped, by part."""
    family = scrape(telemetry.prometheus_url).get(semconv.TELEMETRY_DROPPED.name.replace(".", "_"))
    samples = [sample for sample in family.samples if sample.name.endswith("_total")] if family is not None else []
    return {sample.labels["pellucid_telemetry_part"]: int(sample.value) for sample in samples}


async def run_and_flush(telemetry: Telemetry, seconds: float) -> bool:
    """Run an agent, and flush."""
    agent = Agent("a", model=ScriptedModel("done"), telemetry=telemetry)
    assert (await within(agent.run("go"), 5)).output == "done"
    return await anyio.to_thread.run_sync(telemetry.flush, seconds)


@pytest.mark.parametrize("treat", [never_answer, break_off, answer_nonsense])
async def test_what_a_broken_collector_costs_is_counted(treat: Callable[[socket.socket], None]) -> None:
    """A run ends as always with a broken collector, and all that it sent is counted as lost."""
    with listening(treat) as endpoint, sending_to(endpoint) as telemetry:
        assert not await run_and_flush(telemetry, 10.0)
        assert lost(telemetry) == {"span": SPANS, "log": SPANS}


async def test_what_a_collector_costs_that_is_down_is_counted() -> None:
    """A run ends as always when nobody listens, and all that it sent is counted as lost."""
    with sending_to(f"http://127.0.0.1:{free_port()}") as telemetry:
        assert not await run_and_flush(telemetry, 10.0)
        assert lost(telemetry) == {"span": SPANS, "log": SPANS}


async def test_a_flush_keeps_its_deadline() -> None:
    """A flush keeps its deadline when the collector does not answer."""
    with listening(never_answer) as endpoint, sending_to(endpoint, timeout=60.0) as telemetry:
        began = time.monotonic()
        assert not await run_and_flush(telemetry, 0.1)
        assert time.monotonic() - began < 30  # not the timeouts of the exporter
        await anyio.to_thread.run_sync(telemetry.shutdown, 0.1)
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_collector_is_asked_again(status: int) -> None:
    """A collector that answers that it is busy is asked again, and nothing is lost."""
    with otlp_receiver("http/protobuf") as receiver, sending_to(receiver.endpoint, timeout=10.0) as telemetry:
        receiver.answers.extend([(status, {"Retry-After": "0"})] * 2)
        assert await run_and_flush(telemetry, 10.0)
        assert (len(receiver.spans), len(receiver.logs), lost(telemetry)) == (SPANS, SPANS, {})
        assert receiver.asked == 4


async def test_a_refusal_is_not_argued_with() -> None:
    """An export that the collector refuses as wrong is not sent again, and is counted as lost."""
    with otlp_receiver("http/protobuf") as receiver, sending_to(receiver.endpoint, timeout=10.0) as telemetry:
        receiver.answers.extend([(400, {})] * 2)
        assert not await run_and_flush(telemetry, 10.0)
        assert (receiver.asked, lost(telemetry)) == (2, {"span": SPANS, "log": SPANS})
        assert await run_and_flush(telemetry, 10.0)
        assert (len(receiver.spans), len(receiver.logs)) == (SPANS, SPANS)
