"""The stack of docker-compose.yml with applications, all running; without its servers these tests do not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stack import compose
from stack.scene import Jaeger, applications, prometheus_of
from stack.servers import missing
from support.nats_server import nats_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stack.compose import Stack
    from stack.scene import Application
    from support.prometheus_server import PrometheusServer

HUBS, WORK, DURABLE, NORMAL = "hubs", "work", "durable", "normal"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run on one event loop: what is looked at here are servers."""
    return "asyncio"


@pytest.fixture(scope="session")
def built() -> None:
    """Skip unless the servers are built."""
    if names := missing():
        pytest.skip(f"not built: {', '.join(names)}; `make test-stack` builds them")


@pytest.fixture(scope="session")
def stack(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run all services but Grafana."""
    with compose.stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture(scope="session")
def jaeger(stack: Stack) -> Jaeger:
    """Return the API of Jaeger."""
    return Jaeger(stack["jaeger"].url())


@pytest.fixture(scope="session")
def prometheus(stack: Stack) -> PrometheusServer:
    """Return the API of Prometheus."""
    return prometheus_of(stack)


@pytest.fixture(scope="session")
def broken(stack: Stack) -> Iterator[dict[str, Application]]:
    """Run applications whose hubs, tools, models and workers break in every way, and one that does well."""
    with applications(stack, {name: name for name in (HUBS, WORK, DURABLE, NORMAL)}) as running:
        for name in (HUBS, WORK, DURABLE):
            running[name].order("break")
        yield running


@pytest.fixture(scope="session")
def shop(stack: Stack) -> Iterator[Application]:
    """Run an application that gives every series of the dashboards data, and sends it."""
    with nats_server() as nats, applications(stack, {"shop": "everything"}, NATS_URL=nats.url) as running:
        yield running["shop"]


@pytest.fixture(scope="session")
def demo(stack: Stack) -> Iterator[None]:
    """Run `pellucid demo --otlp --repeat` as the composition's profile `demo` does."""
    with compose.Service("demo", stack.addresses, stack.folder).up():
        yield
