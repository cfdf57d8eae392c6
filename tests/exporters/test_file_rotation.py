"""Rotation of the file, whoever else writes, renames or breaks it."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from pellucid_exporters import File
from support.files import counted, emit, lines, names, put_aside, writing_to
from support.processes import PATIENCE, command, run_python

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
    import os
    import sys
    from pathlib import Path
    from pellucid_exporters import File, configure

    path, name, number, max_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    telemetry = configure("shop", file=File(path, max_bytes=max_bytes, keep=None))
    tracer = telemetry.tracer_provider.get_tracer("test")
    """


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file."""
    return tmp_path / "runs.jsonl"


def test_a_big_file_is_put_aside(path: Path) -> None:
    """A file is put aside before it exceeds its size; no line is lost, and names sort by age."""
    with writing_to(File(path, max_bytes=20_000, keep=None)) as telemetry:
        emit(telemetry, *(f"span {number}" for number in range(500)))
    assert len(put_aside(path)) >= 10
    assert all(found.stat().st_size <= 20_000 for found in path.parent.iterdir())
    assert names(*put_aside(path), path) == [f"span {number}" for number in range(500)]


def test_a_line_that_is_too_big_has_a_file_of_its_own(path: Path) -> None:
    """A line that is larger than a file may be has a file of its own."""
    with writing_to(File(path, max_bytes=5_000)) as telemetry:
        emit(telemetry, "small")
        emit(telemetry, "big", text="x" * 50_000)
        emit(telemetry, "also small")
    assert [names(found) for found in [*put_aside(path), path]] == [["small"], ["big"], ["also small"]]


def test_only_the_latest_files_are_kept(path: Path) -> None:
    """The oldest files that were put aside are deleted, and nothing else in the folder."""
    endings = ("1", "torn", "20200101T000000.000000Z.gz", "29999999T999999.999999Z")
    others = [path.with_name(f"runs.jsonl.{ending}") for ending in endings]
    for other in others:
        other.touch()
    with writing_to(File(path, max_bytes=2_000, keep=3)) as telemetry:
        emit(telemetry, *(f"span {number}" for number in range(100)))
    assert all(other.exists() for other in others)
    others[-1].unlink()
    assert len(put_aside(path)) == 3
    kept = names(*put_aside(path), path)
    assert kept == [f"span {number}" for number in range(100 - len(kept), 100)]


def test_an_old_file_is_put_aside(path: Path) -> None:
    """A file that is older than `max_age` is put aside, and new lines begin another one."""
    with writing_to(File(path, max_age=3600.0)) as telemetry:
        emit(telemetry, "long ago")
        assert telemetry.flush()
        os.utime(path, (time.time() - 7200, time.time() - 7200))
        emit(telemetry, "now")
        assert telemetry.flush()
        assert (names(*put_aside(path)), names(path)) == (["long ago"], ["now"])


def test_a_clock_that_was_set_back_deletes_nothing_new(path: Path) -> None:
    """A file that is put aside now counts as the newest, even if others have names from the future."""
    future = path.with_name("runs.jsonl.29990101T000000.000000Z")
    future.touch()
    with writing_to(File(path, max_bytes=300, keep=1)) as telemetry:
        emit(telemetry, "first", "second")
    assert not future.exists()
    assert names(*put_aside(path), path) == ["first", "second"]


def test_several_processes_write_one_file(path: Path) -> None:
    """Four processes write and put aside at the same time: lines are whole and all there, and limits are kept."""
    body = """
    print("ready", flush=True)
    sys.stdin.readline()
    for each in range(number):
        tracer.start_span(f"{name} {each}", attributes={"text": "x" * (each % 300)}).end()
        if each % 3 == 0:
            assert telemetry.flush()
    """
    writers = [
        subprocess.Popen(
            command(WRITER + body, path, name, 600, 4_000),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "abcd"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, problem = writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0, problem
    written = names(*put_aside(path), path)
    assert sorted(written) == sorted(f"{name} {each}" for name in "abcd" for each in range(600))
    assert all(found.stat().st_size <= 4_000 for found in path.parent.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_children_write_the_same_file(path: Path) -> None:
    """Forked children write to the same file, and lines that waited at the fork are written once."""
    body = """
    tracer.start_span("before").end()
    children = []
    for child in range(4):
        tracer.start_span(f"waiting {child}").end()
        pid = os.fork()
        if pid == 0:
            for each in range(number):
                tracer.start_span(f"child {child} {each}").end()
            os._exit(0 if telemetry.flush() else 1)
        children.append(pid)
    for each in range(number):
        tracer.start_span(f"parent {each}").end()
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    """
    run_python(WRITER + body, path, "-", 300, 30_000)
    expected = ["before", *(f"waiting {child}" for child in range(4)), *(f"parent {each}" for each in range(300))]
    expected += [f"child {child} {each}" for child in range(4) for each in range(300)]
    assert sorted(names(*put_aside(path), path)) == sorted(expected)


@pytest.mark.parametrize("move", ["rename", "remove", "truncate", "replace"])
def test_others_may_move_the_file(path: Path, move: str) -> None:
    """Lines go to the file at the path after others have renamed, removed, emptied or replaced it."""
    with writing_to(path) as telemetry:
        emit(telemetry, "before")
        assert telemetry.flush()
        if move == "rename":
            path.rename(path.with_name("old"))
        elif move == "remove":
            path.unlink()
        elif move == "truncate":
            os.truncate(path, 0)
        else:
            path.with_name("new").touch()
            path.with_name("new").replace(path)
        emit(telemetry, "after")
        assert telemetry.flush()
        assert names(path) == ["after"]
        assert counted(telemetry, "errors") == 0
    if move == "rename":
        assert names(path.with_name("old")) == ["before"]


def test_of_a_link_the_file_that_it_leads_to_is_put_aside(path: Path, tmp_path: Path) -> None:
    """A link to a file stays, and old files lie beside the file that it leads to."""
    (tmp_path / "disk").mkdir()
    target = tmp_path / "disk" / "real.jsonl"
    path.symlink_to(target)
    with writing_to(File(path, max_bytes=300)) as telemetry:
        emit(telemetry, "first", "second")
    assert path.is_symlink()
    assert names(*put_aside(target), target) == ["first", "second"]


def test_the_file_stays_where_it_was_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path stays in the folder that was current when it was given."""
    monkeypatch.chdir(path.parent)
    (path.parent / "elsewhere").mkdir()
    with writing_to(path.name) as telemetry:
        monkeypatch.chdir(path.parent / "elsewhere")
        emit(telemetry, "a")
    assert names(path) == ["a"]


def test_a_torn_line_is_moved_aside(path: Path) -> None:
    """A torn line is moved to a file beside it at the next start, and whole lines stay."""
    path.write_bytes(b'{"type":"span","name":"whole"}\n{"type":"span","name":"to\xff')
    with writing_to(path) as telemetry:
        emit(telemetry, "next")
    assert names(path) == ["whole", "next"]
    torn = path.with_name("runs.jsonl.torn")
    assert torn.read_bytes() == b'{"type":"span","name":"to\xff\n'
    assert torn.stat().st_mode & 0o777 == 0o600


def test_a_start_alone_repairs(path: Path) -> None:
    """A torn line is moved aside although nothing is written."""
    path.write_bytes(b'{"type":"span","name":"whole"}\n' + b'{"text":"' + b"x" * 200_000)
    with writing_to(path):
        pass
    assert names(path) == ["whole"]
    assert path.with_name("runs.jsonl.torn").stat().st_size == len(b'{"text":"') + 200_001


def test_a_line_that_lacks_its_end_only_gets_it(path: Path) -> None:
    """A last line that only lacks its newline gets it, and stays."""
    path.write_bytes(b'{"type":"span","name":"whole"}')
    with writing_to(path) as telemetry:
        emit(telemetry, "next")
    assert names(path) == ["whole", "next"]
    assert not path.with_name("runs.jsonl.torn").exists()


def test_a_kill_leaves_whole_lines(path: Path) -> None:
    """A process that is killed while it writes leaves whole lines; what it had flushed is there."""
    body = """
    def burst():
        for each in range(1000):
            tracer.start_span(f"{name} {each}", attributes={"text": "x" * 2000}).end()

    burst()
    assert telemetry.flush()
    print("flushed", flush=True)
    while True:
        burst()
    """
    for attempt in range(5):
        with subprocess.Popen(
            command(WRITER + body, path, attempt, 0, 10**9), stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "flushed\n"
            size, deadline = path.stat().st_size, time.monotonic() + 30
            while path.stat().st_size == size:  # it is in the middle of writing then
                assert time.monotonic() < deadline
            writer.kill()
    with writing_to(path):
        pass
    written = names(path)
    for attempt in range(5):
        assert [name for name in written if name.startswith(f"{attempt} ")][:1000] == [
            f"{attempt} {each}" for each in range(1000)
        ]
    assert {line["type"] for line in lines(path)} == {"span"}
