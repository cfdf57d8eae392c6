"""Costs of the shipped rules in a real Prometheus: seconds of each group and rule, and samples in memory.

`make bench WHAT=rules` prints the figures of `docs/scaling.md`. A hub series is one hub as one process sees it. A
real process asks 200 hubs; Prometheus scrapes what it shows as that of many instances, and has the series, the labels
and the growth of a fleet in its head. What rules have recorded in the day before is written by promtool.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import anyio

from pellucid import Agent, DiscoveryProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_dashboards.rules import RULES_FILE
from pellucid_exporters import configure
from pellucid_exporters.options import Prometheus
from support.prometheus_server import PrometheusServer, program, prometheus_server

HUBS: Final = 200
SIZES: Final = (1_000, 10_000, 100_000)
DAY: Final = 86_400
STEP: Final = 300
"""Seconds between two values of a recorded series in the past."""

READ: Final = "pellucid_(hub|tool_discovery|tool_catalog|circuit)_.*|up"
"""Pattern of the series that the rules of hubs read."""


class Process:
    """A real process that asks hubs again and again, and what it shows at most once in an interval."""

    def __init__(self, url: str, interval: float, *, buckets: bool) -> None:
        self._url, self._interval, self._buckets = url, interval, buckets
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[float, str, bytes]] = {}

    def show(self, accept: str) -> tuple[str, bytes]:
        """Return the media type and the metrics."""
        with self._lock:
            at, kind, body = self._shown.get(accept, (0.0, "", b""))
            if time.monotonic() - at > self._interval / 2:
                with urlopen(Request(self._url, headers={"Accept": accept}), timeout=60) as answer:
                    kind, body = answer.headers["Content-Type"], answer.read()
                if "protobuf" not in kind and not self._buckets:
                    body = b"".join(line for line in body.splitlines(True) if b"_bucket{" not in line)
                self._shown[accept] = time.monotonic(), kind, body
            return kind, body


@contextmanager
def served(process: Process) -> Iterator[str]:
    """Serve the metrics to many scrapes; the value is the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, body = process.show(self.headers["Accept"])
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 1024

        def handle_error(self, *_: object) -> None:
            """Say nothing: a scrape that was given up is seen in the server's own `up`."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def working(hubs: int, interval: float) -> Iterator[str]:
    """Run an agent on all hubs, twice in each interval: one listing, and one answer of the cache."""
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    providers = [DiscoveryProvider(FakeHub(), id=f"hub-{n}", ttl=interval * 0.8, objective=0.5) for n in range(hubs)]
    stopped = threading.Event()

    async def work() -> None:
        while not stopped.is_set():
            agent = Agent("main", model=ScriptedModel("done"), providers=providers, telemetry=telemetry)
            await agent.run("go")
            await anyio.sleep(interval / 2)

    thread = threading.Thread(target=anyio.run, args=(work,), daemon=True)
    thread.start()
    try:
        assert telemetry.prometheus_url is not None
        yield telemetry.prometheus_url
    finally:
        stopped.set()
        thread.join()
        telemetry.shutdown()


def write_history(rules: Path, hubs: int, storage: Path) -> None:
    """Write a day of the increases that the rules record."""
    names = {line.split('"')[1] for line in rules.read_text().splitlines() if "- record:" in line and ":incr" in line}
    read = sorted(name for name in names if "pellucid:hub_" in name or "pellucid:discover" in name)
    now = int(time.time())
    with tempfile.NamedTemporaryFile("w", suffix=".om", dir=storage.parent, buffering=1 << 20) as file:
        for at in range(now - DAY, now, STEP):
            for name in read:
                for hub in range(hubs):
                    who = f'job="shop",pellucid_provider_id="hub-{hub}",pellucid_outcome="completed"'
                    file.write(f"{name}{{{who}}} {0 if 'over' in name else 100} {at}\n")
        file.write("# EOF\n")
        file.flush()
        command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", file.name, str(storage)]
        subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)


def version() -> tuple[int, int]:
    """Return the version of the installed Prometheus; one that was built of its Go module knows none, and is newer."""
    shown = subprocess.run([program("prometheus"), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"version (\d+)\.(\d+)", shown.stdout + shown.stderr)
    return (int(found[1]), int(found[2])) if found else (3, 8)


def configuration(address: str, processes: int, interval: float, rules: Path, *, native: bool) -> dict[str, Any]:
    """Return the configuration of the server, in which each process is a target."""
    targets = [{"targets": [address], "labels": {"instance": f"10.0.0.{n}"}} for n in range(processes)]
    scrape = {
        "job_name": "shop",
        "scrape_interval": f"{interval:g}s",
        "scrape_timeout": f"{interval:g}s",
        "static_configs": targets,
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": READ, "action": "keep"}],
        **({"scrape_native_histograms": True} if native and version() >= (3, 8) else {}),
    }
    return {
        "global": {"evaluation_interval": "15s"},
        "rule_files": [str(rules.resolve())],
        "scrape_configs": [scrape],
    }


def watch(server: PrometheusServer, seconds: float) -> list[dict[str, Any]]:
    """Return the groups, each with the medians of its evaluations in so many seconds."""
    seen: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(TimeoutError, URLError):  # a busy server answers later
            for group in server.api("rules")["groups"]:
                seen[group["name"]][group["lastEvaluation"]] = group
        time.sleep(2)
    found = []
    for evaluations in seen.values():
        *_, last = several = list(evaluations.values())[1:] or list(evaluations.values())  # the first is of before
        last["median"] = statistics.median(each["evaluationTime"] for each in several)
        last["worst"] = max(each["evaluationTime"] for each in several)
        for number, rule in enumerate(last["rules"]):
            rule["median"] = statistics.median(each["rules"][number]["evaluationTime"] for each in several)
        found.append(last)
    return found


def peak_samples(server: PrometheusServer, expression: str) -> str:
    """Return the largest number of samples that a query held in memory."""
    try:
        found = server.api("query", query=expression, stats="all", timeout="55s")
    except (TimeoutError, HTTPError) as error:
        return f"refused: {error}"
    return f"{found['stats']['samples']['peakSamples']:,}"


def report(groups: Sequence[dict[str, Any]], server: PrometheusServer, *, brief: bool) -> None:
    """Print seconds by group, and by rule with the samples of each."""
    for group in groups:
        seconds = f"{group['median']:7.3f} s, at worst {group['worst']:.3f} s"
        failed = "".join(f" FAILED: {rule['name']}" for rule in group["rules"] if rule["health"] != "ok")
        print(f"  {group['name']:28} every {group['interval']:3g} s: {seconds}{failed}", flush=True)
        for rule in () if brief else group["rules"]:
            peak = peak_samples(server, rule["query"])
            print(f"      {rule['name']:52} {rule['median']:7.3f} s {peak:>12} samples", flush=True)


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description="Measure the shipped rules in a real Prometheus.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of hub series")
    parser.add_argument("--interval", type=float, default=30, help="seconds between two scrapes")
    parser.add_argument("--warm", type=float, default=330, help="seconds before the evaluations that are measured")
    parser.add_argument("--watch", type=float, default=150, help="seconds in which they are measured")
    parser.add_argument("--native", action="store_true", help="native histograms, and classic ones not at all")
    parser.add_argument("--buckets", action="store_true", help="classic histograms with their buckets")
    parser.add_argument("--rules", type=Path, default=RULES_FILE, help="file of rules")
    parser.add_argument("--brief", action="store_true", help="groups only")
    options = parser.parse_args()
    kind = "native histograms" if options.native else f"counts{' and buckets' * options.buckets} of classic histograms"
    for size in options.sizes:
        hubs, processes = min(size, HUBS), max(1, size // HUBS)
        with (
            tempfile.TemporaryDirectory(prefix="rules-") as directory,
            working(hubs, options.interval) as url,
            served(Process(url, options.interval, buckets=options.buckets)) as address,
        ):
            storage = Path(directory, "data")
            write_history(options.rules, hubs, storage)
            config = configuration(address, processes, options.interval, options.rules, native=options.native)
            features = ["native-histograms"] if options.native and version() < (3, 8) else []
            with prometheus_server(config, features=features, storage=storage) as server:
                time.sleep(options.warm)
                groups = watch(server, options.watch)
                series = sum(each["value"] for each in server.api("status/tsdb")["seriesCountByMetricName"])
                up = server.value("avg(up)") or 0
                print(f"{processes} processes x {hubs} hubs = {size:,} hub series; {kind}", flush=True)
                print(f"  {series:,} series in the ten largest names; {up:.0%} of the targets answer", flush=True)
                report(groups, server, brief=options.brief)


if __name__ == "__main__":
    main()
