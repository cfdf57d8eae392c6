"""Durable runs whose process is killed with SIGKILL, at each point of a run; another process continues."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import ToolResult
from pellucid.durable import DurableRuns
from pellucid.run.pausing.fold import INTERRUPTED
from support.durable_scene import Journey, go_through, scene, watch
from support.processes import PATIENCE, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.durable import RunStore
    from support.stores import Location

SCRIPT = """
    import sys

    sys.path.insert(0, sys.argv[1])
    from support.durable_scene import main

    main(*sys.argv[2:])
"""
TESTS = Path(__file__).parents[1]
BACKENDS = ("asyncio", "trio")
BATCH = 30


def start(location: Location, journey: Journey, backend: str) -> subprocess.Popen[str]:
    """Start a process that goes through a run, and is killed at a point."""
    trouble = ("troubled",) if journey.is_troubled else ()
    arguments = (TESTS, *location.arguments, journey.path, journey.kill_at, backend, *trouble)
    return subprocess.Popen(command(SCRIPT, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def check(store: RunStore, journey: Journey, run_id: str = "run") -> None:
    """Check that the run has ended right, and that nothing that was in the journal was done again."""
    where = f"at point {journey.kill_at}: {journey.lines}"
    runs = DurableRuns(store, [scene(journey)])
    state = await runs.status(run_id)
    assert (state.status, state.error) == ("completed", None), where
    results = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
    calls = [call.id for message in state.messages for call in message.tool_calls]
    assert sorted(result.id or "" for result in results) == sorted(call or "" for call in calls), where
    by_id = {result.id: result.response for result in results}
    counts = journey.counts()
    for call_id, line in (("c-once", "once c-once"), ("c-pay", "pay c-pay"), ("c-again", "once c-again")):
        assert counts[line] <= 1, where
        assert by_id[call_id] == (f"{line.split()[0]} done" if by_id[call_id] != INTERRUPTED else INTERRUPTED), where
        assert counts[line] == 1 or by_id[call_id] == INTERRUPTED, where
    assert by_id["c-safe"] == "safe done", where
    assert by_id["c-owed"] == "owed settled", where
    assert by_id["c-ask"] in ("inner", INTERRUPTED), where
    delivered = [response for call_id, response in by_id.items() if call_id and call_id.startswith("status_")]
    assert [response["result"] for response in delivered if isinstance(response, dict)] == ["job settled"], where
    assert state.output == f"{len(results)} results", where
    # Only what was done and not yet written is done again: at most one thing, by one process that was killed.
    repeated = [line for line, count in counts.items() if count > 1]
    assert sum(count - 1 for count in counts.values()) <= 3, where
    assert all(line.split()[0] in ("model", "safe", "job", "owed") for line in repeated), where
    ids = {line.split()[2] for line in counts if line.startswith(("job", "owed"))}
    assert len(ids) <= 3, where
    run = await store.run(run_id)
    assert run is not None
    assert run.pending == 0, where
    before = await store.list_runs()
    await runs.recover()
    await runs.recover()
    assert await store.list_runs() == before, where


def check_trace(journey: Journey) -> None:
    """Check that the spans of all processes are one tree, and that each tool that began has a span that tells it."""
    where = f"at point {journey.kill_at}: {journey.lines}"
    spans = {span["span"]: span for span in journey.spans}
    assert len({span["trace"] for span in spans.values()}) == 1, where
    absent = [span for span in spans.values() if span["parent"] is not None and span["parent"] not in spans]
    assert absent == [], where
    assert sum(span["parent"] is None for span in spans.values()) == 1, where
    assert all(link in spans for span in spans.values() for link in span["links"]), where
    began = {entry["span"]: entry["call"] for entry in journey.ledger}
    calls = {span["span"]: span["call"] for span in spans.values() if span["name"].startswith("execute_tool")}
    assert began.items() <= calls.items(), where
    for span_id in calls.keys() - began.keys():
        span = spans[span_id]
        is_inner = span["call"] in ("c-job", "c-owed", "c-inner", "c-ask") or span["call"].startswith("status_")
        assert is_inner or span["error"] == "interrupted", f"{where}: {span}"
    lost = Counter(span["span"] for span in journey.spans if span["outcome"] == "lost")
    assert all(count == 1 for count in lost.values()), where


async def continued(location: Location, journey: Journey) -> None:
    """Continue a run whose process was killed, until it has ended."""
    journey.kill_at *= -1  # never again
    async with location.open() as store:
        with anyio.fail_after(PATIENCE):
            await go_through(store, journey)
        journey.kill_at *= -1
        await check(store, journey)
        check_trace(journey)


def killed(location: Location, tmp_path: Path, points: Sequence[int], *, is_troubled: bool = False) -> int:
    """Kill a process at each of the points, continue each run here; return how many processes reached their point."""
    reached = 0
    for first in range(0, len(points), BATCH):
        batch: list[tuple[Location, Journey, str]] = []
        for point in points[first : first + BATCH]:
            journey = Journey(tmp_path / f"{point}.txt", point, is_troubled=is_troubled)
            where = location.at(str(point))
            process = start(where, journey, BACKENDS[point % 2])
            _, errors = process.communicate(timeout=PATIENCE)
            if process.returncode == 0:
                continue
            assert process.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, errors
            batch.append((where, journey, BACKENDS[(point + 1) % 2]))
        for where, journey, backend in batch:
            reached += 1
            anyio.run(continued, where, journey, backend=backend)
    return reached


@pytest.mark.parametrize("part", range(4))
def test_killed_at_every_point(location: Location, tmp_path: Path, part: int) -> None:
    """Killed before or after any commit, and before or after anything that happens outside, a run ends right.

    The next process continues under the other event loop.
    """
    points = range(1 + part, 121, 4)
    assert killed(location, tmp_path, points) >= 24


@pytest.mark.anyio
async def test_points_of_a_run(location: Location, tmp_path: Path) -> None:
    """The points at which processes are killed are all points of a run."""
    journey = Journey(tmp_path / "log.txt")
    async with location.open() as store:
        watch(store, journey)
        with anyio.fail_after(PATIENCE):
            await go_through(store, journey)
        assert 90 < journey.points < 121
        await check(store, journey)
        check_trace(journey)


def test_killed_while_a_pass_fails(location: Location, tmp_path: Path) -> None:
    """Killed between an error of the model and the commit that lets the run go on, or after it, a run ends right."""
    journey = Journey(tmp_path / "log.txt", is_troubled=True)

    async def pass_all() -> None:
        async with location.at("all").open() as store:
            watch(store, journey)
            with anyio.fail_after(PATIENCE):
                await go_through(store, journey)
            await check(store, journey)

    anyio.run(pass_all)
    check_trace(journey)
    retries = [number for number, name in enumerate(journey.names, 1) if name == "retry_later before commit"]
    assert len(retries) == 2
    points = [number + offset for number in retries for offset in (-1, 0, 1, 2)]
    assert killed(location, tmp_path, points, is_troubled=True) == len(points)
