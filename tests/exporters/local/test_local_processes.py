"""The local store and processes: several writers, a kill, forks, and disks that are full or not writable."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent
from pellucid.errors import StoreError
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.local.maintenance import compact
from pellucid_exporters.stored.durations import end_of, took
from support.local_store import counted, emit, eventually, storing
from support.processes import PATIENCE, command, run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such processes")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store."""
    return tmp_path / "store.db"


def opened(path: Path) -> StoreReader | None:
    """Return a reader; None while the store is not there yet."""
    try:
        return StoreReader(path)
    except StoreError:
        return None


def test_four_processes_write(path: Path) -> None:
    """Four processes write without a loss or an error, while a reader reads and the store is compacted."""
    script = """
        import sys
        from pellucid_exporters import configure

        telemetry = configure("shop", local=sys.argv[1])
        tracer = telemetry.tracer_provider.get_tracer("pellucid")
        for number in range(100):
            attributes = {"pellucid.run.id": f"{sys.argv[2]}-{number}", "pellucid.phase": "run"}
            with tracer.start_as_current_span("invoke_agent", attributes=attributes):
                for child in range(20):
                    tracer.start_span("chat", attributes={**attributes, "pellucid.phase": "inference"}).end()
        assert telemetry.flush(60) or telemetry.flush(60)
        telemetry.shutdown(60)
        """
    with storing(path):
        pass
    reader = StoreReader(path)
    writers = [
        subprocess.Popen(command(script, path, number), stderr=subprocess.PIPE, text=True) for number in range(4)
    ]
    changes, compacted = reader.changes(), 0
    while any(writer.poll() is None for writer in writers):
        with suppress(StoreError):  # a writer was busy for long
            compact(path, None, None)
            compacted += 1
        assert reader.changes() >= changes
        changes = reader.changes()
        assert len(reader.runs(limit=500)) <= 400
    said = [writer.communicate(timeout=PATIENCE)[1] for writer in writers]
    assert [(writer.returncode, text) for writer, text in zip(writers, said, strict=True)] == [(0, "")] * 4
    assert compacted
    rows = reader.runs(limit=500)
    assert len(rows) == 400
    assert {row.spans for row in rows} == {21}
    assert {row.status for row in rows} == {"completed"}
    assert sum(len(reader.spans(row.run_id)) for row in rows) == 400 * 21


def test_a_killed_process(path: Path) -> None:
    """A killed process leaves its run and open spans interrupted; so does an orderly end while a span is open."""
    script = """
        import sys
        from pellucid import Agent
        from pellucid.testing import ScriptedModel, FunctionModel
        from pellucid_exporters import configure

        telemetry = configure("shop", local=sys.argv[1])

        async def hang(request):
            import anyio
            await anyio.sleep_forever()

        Agent("hangs", model=FunctionModel(hang), telemetry=telemetry).run_sync("x")
        """
    with subprocess.Popen(command(script, path)) as process:
        reader = eventually(lambda: opened(path))
        eventually(lambda: "inference" in [span.phase for span in reader.in_flight()])
        (row,) = reader.runs(outcome="running")
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not reader.in_flight())
    assert [found.run_id for found in reader.runs(outcome="interrupted")] == [row.run_id]
    assert {span.phase: span.status for span in reader.spans(row.run_id)} == {
        "run": "interrupted",
        "discovery": "completed",
        "compose": "completed",
        "inference": "interrupted",
    }
    (killed,), spans = reader.runs(outcome="interrupted"), reader.spans(row.run_id)
    assert killed.spans == len(spans)
    assert killed.seen_until is not None
    assert killed.seen_until >= spans[-1].start
    for each in (killed, spans[0], spans[-1]):
        assert each.end is None
        assert end_of(each, now=2**62) == each.seen_until
        assert took(each).startswith("≥ ")
    with storing(path) as telemetry:
        attributes = {"pellucid.run.id": "open", "pellucid.phase": "run"}
        span = telemetry.tracer_provider.get_tracer("pellucid").start_span("invoke_agent", attributes=attributes)
        eventually(lambda: [found.run_id for found in reader.runs(outcome="running")] == ["open"])
    assert [found.run_id for found in reader.runs(outcome="interrupted")] == ["open", row.run_id]
    span.end()


def test_a_pass_that_another_process_continues(path: Path) -> None:
    """Spans that a killed worker left open are ended by the process that continues the pass: each is there once."""
    script = """
        import sys
        import anyio
        from pellucid import Agent
        from pellucid.durable import open_store
        from pellucid.durable import DurableRuns
        from pellucid.testing import FunctionModel
        from pellucid_exporters import configure

        async def answer(request):
            if sys.argv[2] == "stalls":
                telemetry.flush()
                print("asked", flush=True)
                await anyio.sleep_forever()
            return "done"

        async def work():
            agent = Agent("freight", model=FunctionModel(answer))
            async with open_store(f"sqlite:///{sys.argv[1]}.runs") as store:
                runs = DurableRuns(store, [agent], lease=0.5, poll=0.1)
                run_id = await runs.submit(agent, "go", run_id="1")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(runs.work)
                    async for _ in runs.events(run_id):
                        pass
                    tasks.cancel_scope.cancel()

        telemetry = configure("shop", local=sys.argv[1])
        anyio.run(work)
        telemetry.shutdown()
        """
    with subprocess.Popen(command(script, path, "stalls"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        process.kill()
    run_python(script, path, "answers")
    reader = StoreReader(path)
    completed, lost = reader.runs()
    assert (completed.status, lost.status) == ("completed", "lost")
    names = [span.name for span in reader.spans(lost.run_id)]
    assert sorted(names) == ["chat function", "compose_request", "discover_tools static", "invoke_agent freight"]
    assert len(names) == lost.spans


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forks(path: Path) -> None:
    """Forked children write as processes of their own, beside their parent; nothing is lost or written twice."""
    script = """
        import os
        import sys
        from pellucid_exporters import configure

        telemetry = configure("shop", local=sys.argv[1])
        tracer = telemetry.tracer_provider.get_tracer("test")
        children = []
        for number in range(8):
            for turn in range(50):
                tracer.start_span(f"parent {number} {turn}").end()
            child = os.fork()
            if child == 0:
                tracer.start_span(f"child {number}").end()
                os._exit(0 if telemetry.flush(60) else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
        assert telemetry.flush(60)
        telemetry.shutdown()
        """
    run_python(script, path)
    names = sorted(span.name for span in StoreReader(path).spans(""))
    expected = [f"parent {number} {turn}" for number in range(8) for turn in range(50)]
    assert names == sorted([*expected, *(f"child {number}" for number in range(8))])


def test_a_file_that_cannot_grow(path: Path) -> None:
    """Spans wait while the file cannot grow; with room again all are written, and the store is intact."""
    script = """
        import resource
        import sys
        from pathlib import Path
        from pellucid_exporters import configure

        telemetry = configure("shop", local=sys.argv[1])
        tracer = telemetry.tracer_provider.get_tracer("test")
        tracer.start_span("first").end()
        assert telemetry.flush()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, most))
        for number in range(2000):
            tracer.start_span(f"span {number}", attributes={"text": f"{number} " * 60}).end()
        assert not telemetry.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert telemetry.flush(60) or telemetry.flush(60)
        telemetry.shutdown()
        """
    said = run_python(script, path).stderr
    reader = StoreReader(path)
    digests = [span.attributes["text"]["$body"] for span in reader.spans("") if span.name != "first"]
    assert sorted(reader.bodies(digests).values()) == sorted(f"{number} " * 60 for number in range(2000))
    assert said.count("cannot be written") == 1
    assert said.count("is written to its store again") == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.anyio
async def test_nobody_waits_for_another_process(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Runs complete while another process has the store locked; their spans follow, and the log says so once."""
    with anyio.fail_after(60), storing(path) as telemetry:
        agent = Agent("a", model=ScriptedModel("x"), telemetry=telemetry)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        assert (await agent.run("x")).output == "x"
        assert not await anyio.to_thread.run_sync(telemetry.flush, 5)
        await anyio.to_thread.run_sync(lambda: eventually(lambda: counted(telemetry, "errors")))
        blocker.close()
        await anyio.to_thread.run_sync(lambda: eventually(lambda: telemetry.flush(1)))
        assert counted(telemetry, "dropped") == 0
        assert [row.agent for row in StoreReader(path).runs()] == ["a"]
    said = [record.getMessage() for record in caplog.records if record.name == "pellucid_exporters.spool"]
    assert ["cannot be written" in text for text in said] == [True, False]


def test_a_store_that_is_damaged_or_gone(path: Path) -> None:
    """A damaged file is an error that is counted, and left alone; when it is moved, a new store is made."""
    with storing(path) as telemetry:
        emit(telemetry, "lost with the file")
        assert telemetry.flush()
        for file in path.parent.iterdir():
            file.unlink()
        path.write_bytes(b"damaged " * 4096)
        emit(telemetry, "waits")
        assert not telemetry.flush()
        assert counted(telemetry, "errors") >= 1
        assert path.read_bytes() == b"damaged " * 4096
        path.unlink()
        assert telemetry.flush(5)
        assert [span.name for span in StoreReader(path).spans("")] == ["waits"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder in which every user may write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o777)
        yield Path(shared)


def test_a_folder_that_may_not_be_written_to(open_folder: Path) -> None:
    """A folder without write permission is refused when configured; one that becomes read-only delays spans of runs."""
    script = """
        import os
        import sys
        from pathlib import Path
        import pellucid_exporters.local.processor  # before this process may read nothing anymore
        from pellucid import Agent
        from pellucid.errors import ConfigError
        from pellucid.testing import ScriptedModel
        from pellucid_exporters import StoreReader, configure

        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere
        folder = Path(sys.argv[1]) / "telemetry"
        telemetry = configure("shop", local=folder / "store.db")
        agent = Agent("a", model=ScriptedModel("x", "y"), telemetry=telemetry)
        (folder / "store.db").unlink()
        folder.chmod(0o500)
        assert agent.run_sync("x").output == "x"
        assert not telemetry.flush()
        folder.chmod(0o700)
        assert telemetry.flush(60)
        assert [row.agent for row in StoreReader(folder / "store.db").runs()] == ["a"]
        telemetry.shutdown()
        folder.chmod(0o500)
        try:
            configure("shop", local=folder / "other.db")
        except ConfigError as error:
            assert "Permission denied" in str(error)
        else:
            raise AssertionError("accepted")
        folder.chmod(0o700)
        """
    run_python(script, open_folder)
