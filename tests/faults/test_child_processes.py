"""Processes that `multiprocessing` makes: they end without exit handlers, and deliver their telemetry all the same."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import semconv
from pellucid_exporters import StoreReader
from support.otlp_receiver import METRICS, attributes_of, otlp_receiver
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters import Otlp, configure

method, endpoint, folder = sys.argv[1:]
otlp = Otlp(endpoint=endpoint, protocol="http/protobuf", timeout=60)
configured = dict(otlp=otlp, local=f"{folder}/store.db", file=f"{folder}/spans.jsonl")
if __name__ != "__mp_main__" or method == "spawn":
    telemetry = configure("shop", **configured)

def run(times):
    configure("shop", **configured)
    for _ in range(times):
        assert Agent("a", model=ScriptedModel("done")).run_sync("go").output == "done"

if __name__ == "__main__":
    run(1)
    assert telemetry.flush(60)
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=run, args=(2,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    with ProcessPoolExecutor(2, context) as pool:
        assert list(pool.map(run, [2, 2])) == [None, None]
    with context.Pool(1) as pool:
        pool.map(run, [2])
        pool.close()
        pool.join()
    telemetry.shutdown(60)
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_runs_in_children_arrive(method: str, tmp_path: Path) -> None:
    """Those of processes and of a pool of processes reach OTLP, the store and the file, and are counted once."""
    script = tmp_path / "program.py"
    script.write_text(dedent(SCRIPT))
    with otlp_receiver("http/protobuf") as receiver:
        arguments = [sys.executable, str(script), method, receiver.endpoint, str(tmp_path)]
        finished = subprocess.run(
            arguments, cwd=tmp_path, timeout=PATIENCE, check=False, stderr=subprocess.PIPE, text=True
        )
        assert finished.returncode == 0, finished.stderr
    assert [span.name for span in receiver.spans].count("invoke_agent a") == 11
    assert len(StoreReader(tmp_path / "store.db").runs(limit=100)) == 11
    lines = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert len({line["span_id"] for line in lines if line.get("name") == "invoke_agent a"}) == 11
    counts = counted(receiver.requests)
    assert sum(counts.values()) == 11
    assert len(counts) in {5, 6}  # one worker of the executor can be quick enough for all
    instances = {line["resource"]["service.instance.id"] for line in lines if line["type"] == "span"}
    assert instances == counts.keys()


def counted(requests: list[tuple[str, Any]]) -> dict[str, int]:
    """Return the latest number of runs that each instance says it had."""
    return {
        attributes_of(resource.resource)["service.instance.id"]: point.exponential_histogram.data_points[0].count
        for signal, request in requests
        if signal == METRICS
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for point in scope.metrics
        if point.name == semconv.RUN_ITERATIONS.name
    }
