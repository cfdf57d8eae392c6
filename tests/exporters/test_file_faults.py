"""A file that cannot be written to: nobody waits for it, everything is counted, and it recovers."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters import File
from pellucid_exporters.spool import MOST_TEXT, MOST_WAITING
from support.files import counted, emit, lines, names, put_aside, writing_to
from support.processes import run_python
from support.small_disks import needs_root, small_disk

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = Path("/dev/full")

full_device = pytest.mark.skipif(not FULL.exists(), reason="the platform has no /dev/full")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file."""
    return tmp_path / "runs.jsonl"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that every writer of the file waits for, as one that was stopped in the middle would."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.anyio
@full_device
async def test_a_full_disk_disturbs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """Runs complete on a full disk; flush() returns False, and errors and lost lines are counted."""
    with writing_to(FULL) as telemetry:
        agent = Agent("a", model=ScriptedModel("x", "y"), telemetry=telemetry)
        with anyio.fail_after(60):
            for answer in ("x", "y"):
                assert (await agent.run("x")).output == answer
                assert not await anyio.to_thread.run_sync(telemetry.flush, 10)
        assert counted(telemetry, "errors") >= 2
        assert counted(telemetry, "dropped") == 0
        telemetry.shutdown(20)
    said = [record for record in caplog.records if record.name == "pellucid_exporters.spool"]
    assert ["cannot be written" in record.getMessage() for record in said] == [True, False]
    assert "lost" in said[1].getMessage()
    assert all(record.levelno == logging.WARNING for record in said)


@full_device
def test_what_has_no_room_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The queue is bounded in items and in text; each item that has no room is dropped and counted."""
    with writing_to(FULL) as telemetry:
        emit(telemetry, *["fits"] * MOST_WAITING)
        assert counted(telemetry, "dropped") == 0
        emit(telemetry, *["too many"] * 7)
        assert counted(telemetry, "dropped") == 7
    with writing_to(FULL) as telemetry:
        text = "x" * 1_000_000
        for _ in range(MOST_TEXT // 1_000_000 + 5):
            emit(telemetry, "big", text=text)
        assert counted(telemetry, "dropped") == 4


def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    """Lines wait and stay whole while the file may not grow, and all are written when it may again."""
    script = """
        import json
        import resource
        import sys
        from pathlib import Path
        from pellucid_exporters import configure

        path = Path(sys.argv[1])
        telemetry = configure("shop", file=path)
        tracer = telemetry.tracer_provider.get_tracer("test")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, most))
        for number in range(100):
            tracer.start_span(f"span {number}").end()
            if number < 30:
                telemetry.flush()
        assert not telemetry.flush()
        content = path.read_bytes()
        assert 9_000 < len(content) <= 10_000, len(content)
        assert [json.loads(line)["name"] for line in content.splitlines()][:3] == ["span 0", "span 1", "span 2"]
        assert content.endswith(b"\\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert telemetry.flush()
        """
    path = tmp_path / "runs.jsonl"
    said = run_python(script, path).stderr
    assert names(path) == [f"span {number}" for number in range(100)]
    assert said.count("cannot be written") == 1
    assert said.count("written to its file again") == 1


@needs_root
def test_a_small_disk(tmp_path: Path) -> None:
    """A file system without space is an error that is counted; with space again all lines get in."""
    with small_disk(tmp_path, "64k") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 40_000)
        with writing_to(disk / "runs.jsonl") as telemetry:
            for number in range(100):
                emit(telemetry, f"span {number}", text="x" * 100)
                telemetry.flush()
            assert not telemetry.flush()
            assert 0 < len(lines(disk / "runs.jsonl")) < 100
            assert counted(telemetry, "errors") >= 1
            ballast.unlink()
            os.truncate(disk / "runs.jsonl", 0)
            (disk / "runs.jsonl").unlink()
            assert telemetry.flush()
            assert counted(telemetry, "dropped") == 0
            assert names(disk / "runs.jsonl")[-1] == "span 99"


def test_a_folder_in_place_of_the_file(path: Path) -> None:
    """A folder in place of the file is an error that is counted; once it has gone, all lines are written."""
    with writing_to(path) as telemetry:
        path.unlink()
        path.mkdir()
        emit(telemetry, "waits")
        assert not telemetry.flush()
        assert counted(telemetry, "errors") >= 1
        path.rmdir()
        assert telemetry.flush()
        assert names(path) == ["waits"]
        assert counted(telemetry, "dropped") == 0


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """A file whose folder has gone is not written until the folder is there again."""
    folder = tmp_path / "logs"
    folder.mkdir()
    with writing_to(folder / "runs.jsonl") as telemetry:
        (folder / "runs.jsonl").unlink()
        folder.rmdir()
        emit(telemetry, "waits")
        assert not telemetry.flush()
        folder.mkdir()
        assert telemetry.flush()
        assert names(folder / "runs.jsonl") == ["waits"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_a_folder_that_may_not_be_written_to() -> None:
    """A file that cannot be put aside does not grow over its limit; lines wait until the folder allows it."""
    script = """
        import json
        import os
        import sys
        from pathlib import Path
        import pellucid_exporters.file.processor  # before this process may read nothing anymore
        from pellucid_exporters import File, configure
        from pellucid.errors import ConfigError

        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere
        folder = Path(sys.argv[1]) / "logs"
        folder.mkdir()
        path = folder / "runs.jsonl"
        telemetry = configure("shop", file=File(path, max_bytes=1000, keep=None))
        tracer = telemetry.tracer_provider.get_tracer("test")
        tracer.start_span("span 0").end()
        assert telemetry.flush()
        folder.chmod(0o500)
        for number in range(1, 20):
            tracer.start_span(f"span {number}").end()
        assert not telemetry.flush()
        assert path.stat().st_size <= 1000
        folder.chmod(0o700)
        assert telemetry.flush()
        files = sorted(folder.glob("runs.jsonl.*")) + [path]
        written = [json.loads(line)["name"] for file in files for line in file.read_text().splitlines()]
        assert written == [f"span {number}" for number in range(20)], written
        telemetry.shutdown()
        folder.chmod(0o500)
        try:
            configure("shop", file=folder / "other.jsonl")
        except ConfigError as error:
            assert "Permission denied" in str(error)
        else:
            raise AssertionError("accepted")
        folder.chmod(0o700)
        """
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o777)
        run_python(script, shared)


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
async def test_nobody_waits_for_another_process(path: Path) -> None:
    """Runs complete while another process holds the file; flush() returns False in time, and lines follow later."""
    with anyio.fail_after(60), writing_to(path) as telemetry:
        agent = Agent("a", model=ScriptedModel("x"), telemetry=telemetry)
        with locked(path):
            assert (await agent.run("x")).output == "x"
            assert not await anyio.to_thread.run_sync(telemetry.flush, 0.2)
            assert lines(path) == []
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        assert "invoke_agent a" in names(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_shutdown_keeps_its_deadline(path: Path) -> None:
    """A file that hangs does not hold up the end of the process."""
    with locked(path), writing_to(path) as telemetry:
        emit(telemetry, "lost")
        started = time.monotonic()
        telemetry.shutdown(0.3)
        assert time.monotonic() - started < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_fork_while_the_file_hangs(path: Path) -> None:
    """A child that was forked while the file hangs has a thread, a queue and a lock of its own."""
    script = """
        import fcntl
        import os
        import sys
        from pellucid_exporters import configure

        telemetry = configure("shop", file=sys.argv[1])
        tracer = telemetry.tracer_provider.get_tracer("test")
        assert telemetry.flush()
        with open(sys.argv[1], "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            tracer.start_span("parent").end()
            assert not telemetry.flush(0.2)
            child = os.fork()
            if child == 0:
                fcntl.flock(file, fcntl.LOCK_UN)
                tracer.start_span("child").end()
                os._exit(0 if telemetry.flush(10) else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert telemetry.flush()
        """
    run_python(script, path)
    assert sorted(names(path)) == ["child", "parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_does_not_keep_the_lock_of_its_parent(path: Path) -> None:
    """A child that was forked in the middle of a write can write after its parent was killed there."""
    script = """
        import os
        import sys
        from pellucid_exporters import configure

        telemetry = configure("shop", file=sys.argv[1])
        assert telemetry.flush()
        with telemetry.parts.file._spool._destination._held():
            child = os.fork()
            if child:
                os._exit(0)
            telemetry.tracer_provider.get_tracer("test").start_span("orphan").end()
            print(telemetry.flush(60), flush=True)
            os._exit(0)
        """
    assert run_python(script, path).stdout == "True\n"
    assert names(path) == ["orphan"]


def test_a_span_that_cannot_be_told_costs_no_other(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A span that cannot be written as JSON is counted, logged once, and left out; the lines around it stay."""
    with writing_to(path) as telemetry:
        emit(telemetry, "before")
        for _ in range(2):
            tracer = telemetry.tracer_provider.get_tracer("test")
            tracer.start_span("never", start_time=10**30).end()
        emit(telemetry, "after")
        assert telemetry.flush()
        assert counted(telemetry, "errors") == 2
    assert names(path) == ["before", "after"]
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "a span or event cannot be written as JSON"
    ]


def test_limits_hold_after_an_outage(path: Path) -> None:
    """Lines that have waited for the file are put into files of the size that was asked for."""
    with writing_to(File(path, max_bytes=3_000, keep=None)) as telemetry:
        path.unlink()
        path.mkdir()
        emit(telemetry, *(f"span {number}" for number in range(50)))
        assert not telemetry.flush()
        path.rmdir()
        assert telemetry.flush()
    assert names(*put_aside(path), path) == [f"span {number}" for number in range(50)]
    assert all(found.stat().st_size <= 3_000 for found in path.parent.iterdir())
