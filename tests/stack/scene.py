"""Applications beside the stack, and what the servers' APIs know of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from stack import application
from stack.compose import Stack
from support.prometheus_server import PrometheusServer
from support.scene_process import SceneProcess

T = TypeVar("T")

METRIC_INTERVAL: Final = "5000"
"""Milliseconds between two exports of metrics; a minute unless it is set."""


class Application(SceneProcess):
    """A process of `stack.application`; its URL is that of its metrics if it serves them, or of its collector."""

    def __init__(
        self, service: str, scene: str, endpoint: str, folder: Path, port: str = "", **environment: str
    ) -> None:
        super().__init__(
            service,
            [sys.executable, application.__file__, service, scene, endpoint, *([port] if port else [])],
            folder / f"{service}.log",
            PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
            OTEL_METRIC_EXPORT_INTERVAL=METRIC_INTERVAL,
            **environment,
        )


class Jaeger:
    """The API of Jaeger's query service. Attributes: url: its base URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a trace, as OTLP in JSON, each with `resource`; none if it has no such trace."""
        try:
            found = get_json(f"{self.url}/api/v3/traces/{trace_id}")["result"]["resourceSpans"]
        except HTTPError as error:
            if error.code == 404:
                return []
            raise
        return [
            {**span, "resource": part["resource"], "scope": scoped["scope"]}
            for part in found
            for scoped in part["scopeSpans"]
            for span in scoped["spans"]
        ]

    def search(self, **parameters: str) -> list[dict[str, Any]]:
        """Return the traces that a search of the pages finds; parameters are those of the address of its page."""
        given = {"lookback": "1h", "limit": "20", **parameters}
        end = time.time_ns() // 1000
        window = {"start": str(end - 3600 * 10**6), "end": str(end)}
        found: list[dict[str, Any]] = get_json(f"{self.url}/api/traces?{urlencode(given | window)}")["data"]
        return found


def get_json(url: str) -> Any:
    """Return the JSON of an answer."""
    with urlopen(url, timeout=60) as answer:
        return json.load(answer)


def until(question: Callable[[], T], timeout: float, what: str) -> T:
    """Ask again and again, until the answer is truthy, and return it."""
    deadline = time.monotonic() + timeout
    while not (answer := question()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: still {answer!r} after {timeout:g} s")
        time.sleep(0.5)
    return answer


def prometheus_of(stack: Stack) -> PrometheusServer:
    """Return the API of the stack's Prometheus."""
    return PrometheusServer(stack["prometheus"].url(), [])


@contextmanager
def applications(stack: Stack, services: Mapping[str, str], **environment: str) -> Iterator[dict[str, Application]]:
    """Run an application for each service with its scene, which sends everything to the collector."""
    with ExitStack() as running:
        found = {}
        for service, scene in services.items():
            found[service] = Application(
                service, scene, stack["otel-collector"].url(port=4318), stack.folder, **environment
            )
            running.callback(found[service].stop)
        yield found
