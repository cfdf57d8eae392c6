"""Contents of the file: spans, events and boundaries as valid JSON, without secrets."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from pellucid import Agent, CapturePolicy, Identity, ToolCall, ToolError, tool
from pellucid.errors import ConfigError
from pellucid.events import EVENTS
from pellucid.testing import ScriptedModel
from pellucid_exporters import File, TailSampling, configure
from pellucid_exporters.file.records import NEVER_WRITTEN, lines_of
from support.canaries import SCENES, escaped
from support.files import emit, lines, names, text, writing_to
from support.processes import run_python

if TYPE_CHECKING:
    from collections.abc import Collection

    from pellucid.telemetry.capture import CaptureMode
    from pellucid_exporters.file.options import LineType

CONTENT = ("question-of-user", "argument-of-call", "result-of-tool", "text-of-exception", "answer-of-model")


@tool
async def look(what: str) -> str:
    """Look something up."""
    return "result-of-tool"


@tool
async def fail() -> str:
    """Raise."""
    raise ToolError("text-of-exception")


async def run(telemetry: Any, **settings: Any) -> None:
    """Run an agent that has content everywhere."""
    model = ScriptedModel([ToolCall("look", {"what": "argument-of-call"}), ToolCall("fail", {})], "answer-of-model")
    agent = Agent("looker", model=model, tools=[look, fail], telemetry=telemetry)
    with anyio.fail_after(60):
        await agent.run("question-of-user", **settings)
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file."""
    return tmp_path / "runs.jsonl"


@pytest.mark.anyio
async def test_a_run_is_in_the_file(path: Path) -> None:
    """Each span is a line, as are its phase and events, with the ids, time and duration of the span."""
    with writing_to(path, resource={"deployment.environment.name": "test"}) as telemetry:
        await run(telemetry, identity=Identity(conversation_id="c-1"))
        spans = {line["span_id"]: line for line in lines(path, "span")}
        boundaries = {line["span_id"]: line for line in lines(path, "boundary")}
        events = lines(path, "event")
    assert len(spans) == 9
    assert spans.keys() == boundaries.keys() == {event["span_id"] for event in events}
    for span_id, span in spans.items():
        same = ("time", "duration_ms", "service", "trace_id", "name")
        assert {name: span[name] for name in same} == {name: boundaries[span_id][name] for name in same}
        assert (span["service"], span["scope"]) == ("shop", "pellucid")
        assert span["resource"]["deployment.environment.name"] == "test"
        assert len(span["time"]) == len("2026-01-01T00:00:00.000000000Z")
        for event in events:
            if event["span_id"] == span_id and "duration_ms" in event:
                assert event["duration_ms"] == span["duration_ms"]
                assert event["conversation_id"] == "c-1"
    (root,) = [span for span in spans.values() if "parent_span_id" not in span]
    assert root["name"] == "invoke_agent looker"
    called = next(line for line in boundaries.values() if line.get("tool_name") == "look")
    assert (called["phase"], called["iteration"], called["outcome"]) == ("dispatch", 1, "completed")
    assert (called["input"], called["output"]) == ({"what": "argument-of-call"}, "result-of-tool")
    failed = next(event for event in events if event["name"] == "tool.failed")
    assert (failed["tool_name"], failed["error"]) == ("fail", "text-of-exception")


@pytest.mark.anyio
async def test_a_catalogue_is_in_each_file_once(tmp_path: Path) -> None:
    """A catalogue is once in each file, whole and by its digest, also in the file that follows a rotation."""
    path = tmp_path / "runs.jsonl"
    with writing_to(path) as telemetry:
        for number in (1, 2):
            for _ in range(2):
                await run(telemetry)
            if number == 1:
                path.rename(tmp_path / "first.jsonl")
                emit(telemetry, "a line that opens the next file")
                assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        for file in (path, tmp_path / "first.jsonl"):
            (catalog,) = lines(file, "catalog")
            assert (catalog["provider_id"], [tool["name"] for tool in catalog["tools"]]) == ("static", ["look", "fail"])
            discoveries = [line for line in lines(file, "span") if line["name"].startswith("discover_tools")]
            assert {line["attributes"]["pellucid.catalog.digest"] for line in discoveries} == {catalog["digest"]}


@pytest.mark.anyio
@pytest.mark.parametrize("types", [("span",), ("event",), ("boundary",), ("boundary", "event"), ("catalog",)])
async def test_types_are_chosen(path: Path, types: Collection[LineType]) -> None:
    """Only lines of the chosen types are written."""
    with writing_to(File(path, types=types)) as telemetry:
        await run(telemetry)
    assert {line["type"] for line in lines(path)} == set(types)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")  # of the MCP SDK, on trio
@pytest.mark.parametrize("mode", ["redacted", "metadata", "off"])
@pytest.mark.parametrize("scene", SCENES)
async def test_no_secret_is_in_the_file(path: Path, scene: str, mode: CaptureMode) -> None:
    """Secrets in arguments, results, texts of errors, streams and all else are in no line, nor is who asked."""
    with anyio.fail_after(60), writing_to(path, capture=CapturePolicy(mode)) as telemetry:
        await SCENES[scene](telemetry)
        assert await anyio.to_thread.run_sync(telemetry.flush, 20)
        content = {"catalog"} if mode == "redacted" else set()
        assert {line["type"] for line in lines(path)} == {"span", "event", "boundary"} | content
        assert escaped(text(path)) == set()


@pytest.mark.anyio
async def test_the_search_for_secrets_would_find_them(path: Path) -> None:
    """The search for secrets finds those of the same runs in mode `full`."""
    with anyio.fail_after(60), writing_to(path, capture=CapturePolicy("full")) as telemetry:
        await SCENES["ordinary"](telemetry)
    assert {"argument", "result-value", "error-text", "answer"} <= escaped(text(path))


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "found"), [("full", 5), ("redacted", 5), ("metadata", 0), ("off", 0)])
async def test_content_is_in_the_file_as_the_mode_says(path: Path, mode: CaptureMode, found: int) -> None:
    """Ordinary content is in the file in the modes that record it, and not in the others."""
    with writing_to(path, capture=CapturePolicy(mode)) as telemetry:
        await run(telemetry)
    found_text = text(path)
    assert sum(word in found_text for word in CONTENT) == found


@pytest.mark.anyio
async def test_pieces_of_a_stream_are_not_in_the_file(path: Path) -> None:
    """A streamed answer is in the file as a whole only, since a secret in two pieces could not be masked."""
    with anyio.fail_after(60), writing_to(path) as telemetry:
        agent = Agent("a", model=ScriptedModel("one two three"), telemetry=telemetry)
        async with agent.stream("x") as events:
            seen = {event.name async for event in events}
    assert "inference.delta" in seen
    assert "inference.delta" not in {line.get("name") for line in lines(path)}
    assert "one two three" in text(path)


def test_no_field_of_an_event_hides_one_of_the_line() -> None:
    """No field of an event has the name of a field of its line."""
    for name in EVENTS.keys() - NEVER_WRITTEN:
        fields = {field.name for field in dataclasses.fields(EVENTS[name])}
        assert fields.isdisjoint({"type", "service", "name", "conversation_id"}), name


def test_lines_are_valid_json_whatever_is_in_them(path: Path) -> None:
    """A span with NUL, lone surrogates, NaN, bytes, line ends or large numbers is one line of valid JSON."""
    odd = {
        "nul": "a\0b",
        "lone": "\ud800 and \udfff",
        "nan": float("nan"),
        "infinite": [1.0, float("-inf")],
        "ends": "a\r\nb\u2028c\x85d",
        "bytes": b"\xff\0",
        "long": 2**62,
        "€\0\n": True,
    }
    with writing_to(path) as telemetry:
        emit(telemetry, "odd", **odd)
        emit(telemetry, "name \ud800\n\0")
        assert telemetry.flush()
        first, second = lines(path, "span")
    assert first["attributes"] == {
        "nul": "a\0b",
        "lone": "\N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}",
        "nan": "NaN",
        "infinite": [1.0, "-Infinity"],
        "ends": "a\r\nb\u2028c\x85d",
        "bytes": "_wA=",
        "long": 2**62,
        "€\0\n": True,
    }
    assert second["name"] == "name \N{REPLACEMENT CHARACTER}\n\0"


@given(st.dictionaries(st.text(min_size=1), st.text() | st.floats() | st.integers() | st.lists(st.text()), max_size=4))
def test_any_attributes_make_one_valid_line(attributes: dict[str, Any]) -> None:
    """A span with any attributes is one line of UTF-8."""
    span = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s", attributes=attributes)
    span.end()
    (line,) = lines_of(span, ("span", "boundary"), Resource({}))  # type: ignore[arg-type]  # the API's type
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")
    line.decode()


def test_spans_of_other_libraries_are_no_boundaries(path: Path) -> None:
    """A span that is none of Pellucid's has a line, but no boundary."""
    with writing_to(path) as telemetry:
        emit(telemetry, "GET /")
    assert [(line["type"], line["scope"]) for line in lines(path)] == [("span", "test")]


@pytest.mark.anyio
async def test_tail_sampling_chooses_spans_and_boundaries(path: Path) -> None:
    """A run that tail sampling drops has only its events in the file."""
    sampling = TailSampling(share=0.0, failed_phases=False, slow_hubs=False)
    with anyio.fail_after(60), writing_to(path, tail_sampling=sampling) as telemetry:
        await Agent("dropped", model=ScriptedModel("x"), telemetry=telemetry).run("x")
        failing = Agent("kept", model=ScriptedModel(OSError("down")), telemetry=telemetry)
        with pytest.raises(Exception, match="down"):
            await failing.run("x")
    assert {line["name"] for line in lines(path, "span") if "invoke" in line["name"]} == {"invoke_agent kept"}
    assert {line["trace_id"] for line in lines(path, "boundary")} == {line["trace_id"] for line in lines(path, "span")}
    assert {line["agent"] for line in lines(path, "event")} == {"dropped", "kept"}


def test_the_file_is_private(path: Path) -> None:
    """Only the owner may read the file, whatever the umask is; a mode that somebody gave it stays."""
    mask = os.umask(0)
    try:
        with writing_to(path) as telemetry:
            emit(telemetry, "a")
            assert telemetry.flush()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o640)
            emit(telemetry, "b")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(mask)
    assert names(path) == ["a", "b"]


def test_paths_that_cannot_work_are_refused(tmp_path: Path) -> None:
    """A path that cannot be written to, such as a folder, is refused at once, with the reason."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("", "directory"),
        ("missing/runs.jsonl", "No such file"),
        ("file/runs.jsonl", "Not a directory"),
        ("pipe", "No such device"),
        ("x" * 300, "too long"),
    ):
        with pytest.raises(ConfigError, match=why):
            configure("shop", file=File(tmp_path / name), set_global=False)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "pipe"]


@pytest.mark.parametrize(
    "options",
    [{"max_bytes": 0}, {"max_age": -1.0}, {"keep": 0}, {"types": ()}, {"types": ["trace"]}, {"path": "\0"}],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """A limit of 0, an unknown type, and a path that is none are refused."""
    with pytest.raises(ConfigError, match="File"):
        File(**{"path": "runs.jsonl", **options})


def test_options_that_mean_the_same_are_equal() -> None:
    """Options with the same path, as text or `Path`, and the same types in any order are equal."""
    assert File("a.jsonl") == File(Path("a.jsonl"))
    assert File("a", types=["event", "span"]) == File("a", types=("span", "event"))
    assert File("a") != File("a", keep=3)


def test_configure_takes_a_path(path: Path) -> None:
    """A path is enough to configure; the same path again gives the same Telemetry, and an exit writes what waits."""
    script = """
        import sys
        from opentelemetry import trace
        from pellucid_exporters import File, configure

        telemetry = configure("shop", file=sys.argv[1])
        assert configure("shop", file=File(sys.argv[1])) is telemetry
        trace.get_tracer("test").start_span("last words").end()
        """
    run_python(script, path)
    assert names(path) == ["last words"]
    run_python(script, path.with_name("other"), OTEL_SDK_DISABLED="true")
    assert not path.with_name("other").exists()


ROOT = Path(__file__).parent.parent.parent
QUESTIONS = re.findall(
    r"^```sh\n(.*?)^```$", (ROOT / "docs" / "exporters" / "file.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.anyio
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("question", QUESTIONS)
async def test_questions_of_the_documentation_have_answers(path: Path, question: str) -> None:
    """Each command that the documentation shows finds something in the file of a run."""
    with writing_to(path) as telemetry:
        await run(telemetry)
    with anyio.fail_after(60):
        done = await anyio.run_process(["sh", "-ec", question], cwd=path.parent)
    assert done.stdout.strip()
    assert done.stderr == b""
