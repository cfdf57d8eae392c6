"""The local store when its disk is full, when there is too much in it, and with records that cannot be written."""

from __future__ import annotations

import os
import subprocess
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from pellucid import semconv
from pellucid_exporters import Local, StoreReader
from pellucid_exporters.local.maintenance import statistics
from support.local_store import counted, emit, eventually, storing
from support.processes import PATIENCE, python
from support.small_disks import needs_root, small_disk

if TYPE_CHECKING:
    from pathlib import Path


def test_a_record_that_cannot_be_written_blocks_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start with a time out of range is dropped, counted and logged; all else is in the store."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        facts = {semconv.RUN_ID: "run", semconv.PHASE: semconv.DISCOVERY}
        emit(telemetry, "before")
        open_spans = [tracer.start_span("impossible", attributes=facts, start_time=2**70) for _ in range(2)]
        emit(telemetry, "after")
        assert telemetry.flush()
        assert counted(telemetry, "dropped") == len(open_spans)
        assert counted(telemetry, "errors") == 0
        emit(telemetry, "later")
    assert {span.name for span in StoreReader(path).spans("")} == {"before", "after", "later"}
    assert caplog.text.count("cannot be written to the store") == 1


def test_a_file_that_may_not_grow_loses_nothing(tmp_path: Path) -> None:
    """At a limit of the system spans wait, and the store stays readable; beyond it all are written."""
    script = """
        import os, resource, sys
        from pellucid_exporters import StoreReader, configure

        path = sys.argv[1]
        telemetry = configure("shop", local=path)
        tracer = telemetry.tracer_provider.get_tracer("test")
        assert telemetry.flush()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, most))
        for number in range(100):
            tracer.start_span(f"span {number}", attributes={"text": os.urandom(10_000).hex()}).end()
            telemetry.flush()
        assert not telemetry.flush()
        kept = [span.name for span in StoreReader(path).spans("")]
        assert 0 < len(kept) < 100, len(kept)
        assert kept == [f"span {number}" for number in range(len(kept))]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert telemetry.flush()
        assert len(StoreReader(path).spans("")) == 100
        """
    command = python("-c", dedent(script), str(tmp_path / "store.db"))
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be written to its store") == 1
    assert done.stderr.count("written to its store again") == 1


@needs_root
def test_a_small_disk(tmp_path: Path) -> None:
    """A file system without space is an error that is counted; with space again all spans get in."""
    with small_disk(tmp_path, "2m") as disk:
        ballast = disk / "ballast"
        with storing(disk / "store.db") as telemetry:
            emit(telemetry, "first")
            assert telemetry.flush()
            ballast.write_bytes(b"x" * 1_000_000)
            for number in range(60):
                emit(telemetry, f"span {number}", text=os.urandom(8_000).hex())
                telemetry.flush()
            assert not telemetry.flush()
            assert 0 < len(StoreReader(disk / "store.db").spans("")) < 61
            assert counted(telemetry, "errors") >= 1
            ballast.unlink()
            assert eventually(telemetry.flush)
            assert counted(telemetry, "dropped") == 0
            assert len(StoreReader(disk / "store.db").spans("")) == 61


def test_the_oldest_runs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_bytes` the content stays below it while more than that is written; the newest runs are kept."""
    monkeypatch.setattr("pellucid_exporters.local.retention.INTERVAL", 0)
    path, limit = tmp_path / "store.db", 1024 * 1024
    with storing(Local(path, max_bytes=limit)) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        facts = {f"fact {number}": os.urandom(40).hex() for number in range(20)}
        for number in range(3_000):
            tracer.start_span("run", attributes={semconv.RUN_ID: f"{number}", **facts}).end()
            if number % 100 == 0:
                assert telemetry.flush()
        assert telemetry.flush()
    found = statistics(path)
    assert 0 < found["runs"] < 3_000
    assert found["bytes"] < 2 * limit
    assert path.stat().st_size < 4 * limit
    kept = [int(run.run_id) for run in StoreReader(path).runs(limit=10_000)]
    assert kept == list(range(2_999, 2_999 - len(kept), -1))
