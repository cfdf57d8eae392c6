"""The real Prometheus, started on a free port with a configuration of the test's.

Any test may use it: `prometheus_server({"scrape_configs": [...], "rule_files": [...]}, features=["exemplar-storage"])`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

_LISTENING: Final = re.compile(r'msg="Listening on"(?: component=\S+)? address=(\S+)')


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A server that runs. Attributes: url: its base URL; log: its last lines."""

    url: str
    log: Sequence[str]

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of `/api/v1/<path>`."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query, each with `metric` and `value` (or `histogram`)."""
        result: list[dict[str, Any]] = self.api("query", query=expression)["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Return the value of the one series of an instant query; `None` if there is none yet."""
        result = self.query(expression)
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else None

    def exemplars(self, selector: str) -> list[dict[str, Any]]:
        """Return all exemplars of the series that match: `labels`, `value`, `timestamp`."""
        now = time.time()
        found = self.api("query_exemplars", query=selector, start=str(now - 3600), end=str(now + 60))
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def until(self, question: Callable[[], T], timeout: float = 100.0) -> T:
        """Ask again and again, until the answer is truthy, and return it; fail with the server's log otherwise."""
        deadline = time.monotonic() + timeout
        while not (answer := question()):
            if time.monotonic() > deadline:
                log = "\n".join(self.log)
                pytest.fail(f"still {answer!r} after {timeout:g} s; {self.api('targets')['activeTargets']}\n{log}")
            time.sleep(0.05)
        return answer


def program(name: str) -> str:
    """Return the path of a program that a test needs; without it the test is skipped, or fails where CI says so."""
    found = shutil.which(name)
    if found is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain(f"the program {name!r} is not installed (Debian: apt-get install prometheus prometheus-alertmanager)")
    return found


@contextmanager
def prometheus_server(
    config: Mapping[str, Any], *, features: Sequence[str] = (), storage: Path | None = None
) -> Iterator[PrometheusServer]:
    """Run Prometheus until the end of the block.

    Args:
        config: Its configuration; paths in it must be absolute.
        features: What to enable by `--enable-feature`.
        storage: Where it keeps its data for the next one; nowhere unless given.
    """
    with tempfile.TemporaryDirectory(prefix="prometheus-") as directory:
        file = Path(directory, "prometheus.yml")
        file.write_text(json.dumps(config))  # JSON is YAML
        command = [
            program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={storage or Path(directory, 'data')}",
            "--web.listen-address=127.0.0.1:0",
            "--rules.alert.resend-delay=5s",  # instead of a minute, in which nobody hears of a trace that came second
            *([f"--enable-feature={','.join(features)}"] if features else []),
        ]
        with listening(command) as (url, log):
            server = PrometheusServer(url, log)
            server.until(lambda: "Server is ready" in "\n".join(log))
            yield server


@contextmanager
def listening(command: Sequence[str]) -> Iterator[tuple[str, deque[str]]]:
    """Run a server of Prometheus' family until the end of the block; the value is its base URL and its last lines."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log: deque[str] = deque(maxlen=200)
    addresses: list[str] = []
    ready = threading.Event()
    reader = threading.Thread(target=_follow, args=(process, log, addresses, ready), daemon=True)
    reader.start()
    try:
        if not ready.wait(60) or not addresses:
            pytest.fail(f"{command[0]} did not start:\n" + "\n".join(log))
        yield f"http://{addresses[0]}", log
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def scrape_config(url: str, *, interval: str = "250ms", **more: Any) -> dict[str, Any]:
    """Return what scrapes one URL of ours, as an entry of `scrape_configs`."""
    parts = urlsplit(url)
    return {
        "job_name": "pellucid",
        "scheme": parts.scheme,
        "metrics_path": parts.path,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": [parts.netloc]}],
        **more,
    }


def _follow(process: subprocess.Popen[str], log: deque[str], listening: list[str], ready: threading.Event) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        log.append(line.rstrip())
        if found := _LISTENING.search(line):
            listening.append(found[1])
            ready.set()
    ready.set()
