"""The Collector configurations of deploy/collector: valid, and doing what they say, with spans of our own agents."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from pellucid_exporters import StoreReader, configure
from stack.collectors import EXAMPLES, FOLDER, Collector, collector, example, validated
from stack.scene import until
from stack.servers import missing
from stack.two_services import EXPERT, FAILING, FRONT, PLAIN, SLOW_HUB, TwoServices
from support.compose_files import FILES
from support.otlp_receiver import Received, attributes_of, otlp_receiver
from support.ports import free_port
from support.receiver import receiver
from support.score_watch import scores, watching
from support.secret_shapes import filled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.otlp_receiver import Receiver

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack, pytest.mark.short]

HTTP: Final = "http/protobuf"
VARIABLE: Final = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")
LARGE: Final = {
    "docker-compose": [FILES / "otel-collector/config.yaml"],
    "kubernetes": [FILES / "kubernetes/collector-gateway.yaml"],
    "grafana": example("grafana"),
    "edge": example("sampling-edge"),
}
"""Configurations that send spans by gRPC."""

PATHS: Final = {
    "grafana": {"/otlp/v1/metrics", "/otlp/v1/logs"},
    "langfuse": {"/api/public/otel/v1/traces"},
    "logfire": {"/v1/traces", "/v1/metrics", "/v1/logs"},
}
"""Paths that are asked of vendors by HTTP, as they document them."""

UNTRIED: Final = {"datadog": "the program that is built here is without Datadog's exporter and connector"}
NOT_URLS: Final = {"GATEWAYS": "[127.0.0.1:4317]", "SHARE": "10", "QUEUE_FOLDER": "/tmp", "TEMPO": "127.0.0.1:4317"}
"""Variables whose values are not URLs."""


@pytest.fixture(autouse=True)
def _built() -> None:
    if "otel-collector" in missing():
        pytest.skip("not built: otel-collector; `make test-stack` builds it")


@pytest.fixture
def destinations() -> Iterator[list[Receiver]]:
    """Run three destinations for OTLP over HTTP; what they get keeps to the protocol."""
    with ExitStack() as running:
        receivers = [running.enter_context(otlp_receiver(HTTP)) for _ in range(3)]
        yield receivers
        assert [fault for receiver in receivers for fault in receiver.faults] == []


def ids(receiver: Receiver) -> set[bytes]:
    """Return the ids of all spans that have arrived."""
    return {span.span_id for span in receiver.spans}


def traces(receiver: Receiver) -> dict[str, list[Any]]:
    """Return the spans that have arrived, by trace id."""
    found = defaultdict(list)
    for span in receiver.spans:
        found[span.trace_id.hex()].append(span)
    return found


def runs(receiver: Receiver, service: str) -> int:
    """Return how many runs the last exported metrics of a service count."""
    counted = 0
    for _, request in receiver.requests:
        for part in getattr(request, "resource_metrics", ()):
            if attributes_of(part.resource)["service.name"] == service:
                found = [metric for scope in part.scope_metrics for metric in scope.metrics]
                points = [
                    point.count
                    for metric in found
                    if metric.name == "gen_ai.invoke_agent.duration"
                    for point in metric.exponential_histogram.data_points
                ]
                counted = sum(points) or counted
    return counted


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_collector_accepts_it(name: str) -> None:
    """The Collector accepts each example with its variables filled in."""
    if name in UNTRIED:
        pytest.skip(UNTRIED[name])
    variables = dict(VARIABLE.findall((FOLDER / f"{name}.yaml").read_text()))
    assert validated(example(name), dict.fromkeys(variables, "http://127.0.0.1:4318") | NOT_URLS) == ""


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_head_names_what_to_fill_in(name: str) -> None:
    """The comment at the top of an example names each variable without a default."""
    text = (FOLDER / f"{name}.yaml").read_text()
    head = "".join(re.findall(r"\A(?:#.*\n)+", text))
    assert head
    assert [variable for variable, default in VARIABLE.findall(text) if not default and variable not in head] == []


async def test_a_queue_on_disk_survives(tmp_path: Path) -> None:
    """Telemetry in a queue on disk arrives later, although the destination was down and the Collector killed twice."""
    port = free_port()
    queued = Collector(
        example("queue"), tmp_path, OTLP_ENDPOINT=f"http://127.0.0.1:{port}", QUEUE_FOLDER=str(tmp_path / "queue")
    )
    try:
        queued.start()
        services = TwoServices(queued.endpoint)
        kinds = await services.requests([PLAIN] * 20)
        assert services.delivered()
        queued.kill()
        queued.start()
        queued.kill()
        with otlp_receiver(HTTP, port=port) as destination:
            queued.start()
            until(lambda: len(traces(destination)) == len(kinds), 120, "traces from the queue")
            until(lambda: runs(destination, EXPERT) == len(kinds), 120, "metrics from the queue")
            until(lambda: len(destination.logs) >= len(kinds), 120, "logs from the queue")
            assert set(traces(destination)) == set(kinds)
            assert destination.unresolved_parents() == []
            assert len({tuple(sorted(span.name for span in spans)) for spans in traces(destination).values()}) == 1
        services.shutdown()
    finally:
        queued.stop()


async def test_secrets_do_not_arrive(destinations: list[Receiver], tmp_path: Path) -> None:
    """Secrets that other libraries record in attributes, events and logs are masked; what is around them arrives."""
    destination = destinations[0]
    token, password = filled("ghp_{A36}"), filled("{A20}")
    with collector(example("redaction"), tmp_path, OTLP_ENDPOINT=destination.endpoint) as running:
        services = TwoServices(running.endpoint)
        tracer = services.front.tracer_provider.get_tracer("another library")
        with tracer.start_as_current_span(
            "call", attributes={"note": f"as {token} ok", "db.password": password}
        ) as span:
            span.add_event("sent", {"header": f"Bearer {token}"})
        assert services.front.logger_provider is not None
        services.front.logger_provider.get_logger("another library").emit(body=f"sent {token} ok")
        services.shutdown()
        until(lambda: destination.spans and destination.logs, 30, "a span and a log record")
    text = b"".join(request.SerializeToString() for _, request in destination.requests)
    assert token.encode() not in text
    assert password.encode() not in text
    [arrived], [record] = destination.spans, destination.logs
    assert re.fullmatch(r"as \*+ ok", attributes_of(arrived)["note"])
    assert re.fullmatch(r"sent \*+ ok", record.body.string_value)


async def test_both_destinations_get_everything(destinations: list[Receiver], tmp_path: Path) -> None:
    """Both destinations get everything; one that was down gets the rest when it is up again."""
    first, port = destinations[0], free_port()
    second = f"http://127.0.0.1:{port}"
    with collector(
        example("two-destinations"), tmp_path, FIRST_ENDPOINT=first.endpoint, SECOND_ENDPOINT=second
    ) as running:
        services = TwoServices(running.endpoint)
        with otlp_receiver(HTTP, port=port) as up:
            before = await services.requests([PLAIN] * 20)
            assert services.delivered()
            until(lambda: set(traces(first)) == set(traces(up)) == set(before), 30, "traces at both")
            until(lambda: ids(first) == ids(up), 30, "spans at both")
        during = await services.requests([PLAIN] * 20)
        assert services.delivered()
        until(lambda: set(traces(first)) == {*before, *during}, 30, "traces at the one that is up")
        with otlp_receiver(HTTP, port=port) as again:
            until(lambda: set(traces(again)) == set(during), 120, "traces at the one that is up again")
        services.shutdown()


async def test_runs_are_scored_by_a_watcher(destinations: list[Receiver], tmp_path: Path) -> None:
    """A watcher gets all runs by the Collector and scores each once, and the backend gets the same traces."""
    backend, store = destinations[0], tmp_path / "received.db"
    with (
        watching(store) as (_, url),
        collector(example("scores"), tmp_path, OTLP_ENDPOINT=backend.endpoint, SCORES_ENDPOINT=url) as running,
    ):
        services = TwoServices(running.endpoint)
        kinds = await services.requests([PLAIN] * 20)
        services.shutdown()
        until(lambda: len(scores(store)) >= len(kinds), 60, "scores")
    reader = StoreReader(store)
    assert {row.trace_id for row in reader.runs() if reader.scores(row.run_id)} == set(kinds)
    assert len(scores(store)) == len(kinds)
    until(lambda: set(traces(backend)) == set(kinds), 30, "traces at the backend")


async def test_sampling_in_two_tiers(destinations: list[Receiver], tmp_path: Path) -> None:
    """Sampling in two tiers keeps traces whole, all errors and slow hubs, a share of the rest, and exact metrics."""
    *kept, unsampled = destinations
    asked = [PLAIN] * 300 + [FAILING] * 40 + [SLOW_HUB] * 20
    with ExitStack() as running:
        gateways = [
            running.enter_context(
                collector(example("sampling-gateway"), tmp_path, OTLP_ENDPOINT=one.endpoint, SHARE="20")
            )
            for one in kept
        ]
        addresses = f"[{', '.join(f'{gateway.address}:4317' for gateway in gateways)}]"
        edge = running.enter_context(
            collector(example("sampling-edge"), tmp_path, OTLP_ENDPOINT=unsampled.endpoint, GATEWAYS=addresses)
        )
        services = TwoServices(edge.endpoint)
        kinds = await services.requests(asked)
        services.shutdown()
        decided = "otelcol_processor_tail_sampling_global_count_traces_sampled(?:_total)?"
        until(lambda: sum(gateway.count(decided) for gateway in gateways) == len(kinds), 120, "decisions")
        spans_before = edge.count("otelcol_receiver_accepted_spans(?:__spans)?(?:_total)?")
    one, other = map(traces, kept)
    assert one
    assert other
    assert not one.keys() & other.keys()
    whole = one | other
    found = Counter(kinds[trace] for trace in whole)
    assert (found[FAILING], found[SLOW_HUB]) == (40, 20)
    assert 25 <= found[PLAIN] <= 110
    # Traces of a kind have the same spans, and if all had been kept these would be as many as the edge has accepted.
    shapes = {
        kind: {tuple(sorted(span.name for span in whole[trace])) for trace in whole if kinds[trace] == kind}
        for kind in found
    }
    assert {kind: len(shape) for kind, shape in shapes.items()} == dict.fromkeys(found, 1)
    assert sum(len(shapes[kind].copy().pop()) for kind in kinds.values()) == spans_before
    assert [receiver.unresolved_parents() for receiver in kept] == [[], []]
    assert [runs(unsampled, service) for service in (FRONT, EXPERT)] == [len(kinds), len(kinds)]


@pytest.mark.parametrize("name", LARGE)
def test_large_spans_arrive(name: str, tmp_path: Path) -> None:
    """Large spans arrive: batches stay below the 4 MiB that gRPC receivers take."""
    with otlp_receiver("grpc") as destination:
        address = destination.endpoint.removeprefix("http://")
        variables = {"TEMPO": address, "TRACES_ENDPOINT": address, "GATEWAYS": f"[{address}]"}
        elsewhere = dict.fromkeys(("MIMIR", "LOKI", "METRICS_ENDPOINT", "OTLP_ENDPOINT"), "http://127.0.0.1:4318")
        hosts = {"jaeger:4317": address}
        with collector(LARGE[name], tmp_path, hosts=hosts, **variables, **elsewhere) as running:
            services = [configure(f"service-{n}", otlp=running.endpoint, set_global=False) for n in range(4)]
            for number in range(40):
                for service in services:
                    tracer = service.tracer_provider.get_tracer("documents")
                    tracer.start_span("read", attributes={"text": f"{number:0100000}"}).end()
            with ThreadPoolExecutor(len(services)) as threads:
                list(threads.map(lambda service: service.shutdown(30.0), services))
            until(lambda: len(destination.spans) == 160, 30, "large spans")


@pytest.mark.parametrize("name", PATHS)
async def test_vendors_get_what_they_ask_for(name: str, tmp_path: Path) -> None:
    """Requests to vendors have the paths and the credentials that they document."""
    variables = {
        "LANGFUSE_AUTH": "cGs6c2s=",
        "LOGFIRE_TOKEN": "a-write-token",
        "TEMPO": "127.0.0.1:4317",
        "TENANT": "acme",
    }
    with receiver() as vendor:
        urls = dict.fromkeys(("MIMIR", "LOKI", "LANGFUSE_HOST", "LOGFIRE_URL"), vendor.url.removesuffix("/hooks"))
        with collector(example(name), tmp_path, hosts={}, **variables, **urls) as running:
            services = TwoServices(running.endpoint)
            await services.requests([PLAIN])
            services.shutdown()
            until(lambda: {request.path for request in vendor.received} == PATHS[name], 30, "paths")
    for headers in (request.headers for request in vendor.received):
        if name == "grafana":
            assert headers["x-scope-orgid"] == "acme"
        elif name == "langfuse":
            assert (headers["authorization"], headers["x-langfuse-ingestion-version"]) == ("Basic cGs6c2s=", "4")
        else:
            assert headers["authorization"] == "a-write-token"


async def test_langfuse_counts_tokens_once(tmp_path: Path) -> None:
    """Only model calls have tokens in Langfuse, which adds them up, and discovery and compose have a known kind."""
    arrived = Received()
    with receiver() as vendor:
        variables = {"LANGFUSE_HOST": vendor.url.removesuffix("/hooks"), "LANGFUSE_AUTH": "cGs6c2s="}
        with collector(example("langfuse"), tmp_path, hosts={}, **variables) as running:
            services = TwoServices(running.endpoint)
            await services.requests([PLAIN])
            services.shutdown()
        for request in vendor.received:
            arrived.take("traces", gzip.decompress(request.body), request.headers)
    found = {span.name: attributes_of(span) for span in arrived.spans}
    assert {name for name, attributes in found.items() if "gen_ai.usage.input_tokens" in attributes} == {
        "chat function"
    }
    assert {name for name, attributes in found.items() if attributes.get("openinference.span.kind") == "CHAIN"} == {
        "discover_tools static",
        "compose_request",
    }


async def test_phoenix_gets_kinds_inputs_and_outputs(destinations: list[Receiver], tmp_path: Path) -> None:
    """Phoenix gets the kind of discovery and compose, inputs and outputs, which are added to our spans."""
    destination = destinations[0]
    with collector(example("phoenix"), tmp_path, PHOENIX_URL=destination.endpoint) as running:
        services = TwoServices(running.endpoint)
        await services.requests([PLAIN])
        services.shutdown()
        until(lambda: len(destination.spans) == 13, 30, "spans")
    found = {span.name: attributes_of(span) for span in destination.spans if span.name != "request"}
    kinds = {name: attributes.get("openinference.span.kind") for name, attributes in found.items()}
    assert {name for name, kind in kinds.items() if kind == "CHAIN"} == {"discover_tools static", "compose_request"}
    assert {kind for kind in kinds.values() if kind != "CHAIN"} == {None}
    for name, attributes in found.items():
        assert json.loads(attributes["output.value"]) is not None, name
        assert "input.value" in attributes, name
    assert found["execute_tool consult"]["output.value"] == '"All of it."'
