"""`pellucid score watch --listen`: runs that arrive by OTLP are scored once and whole, though the watcher is killed."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from pellucid import Agent, ConfigError, ToolCall, semconv, tool
from pellucid.scores import Score, tool_called
from pellucid.testing import ScriptedModel
from pellucid_commands.receiving.listening import address, listening
from pellucid_commands.receiving.target import ReceivedStore, create_store
from pellucid_commands.scoring.arrivals import LONGEST, QUIET, Arrivals
from pellucid_commands.scoring.claims import Claims
from pellucid_commands.scoring.recording import Recorder
from pellucid_commands.scoring.watching import Watch
from pellucid_exporters import StoreReader
from pellucid_exporters.testing import capture
from support.local_store import eventually
from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE, run_python
from support.score_watch import scores, watching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

AGENT: Final = """
import sys
from pellucid import Agent, ToolCall, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp

@tool
def price(item: str) -> str:
    "Return the price of an item."
    return f"{item}: 12 euros"

telemetry = configure("shop", otlp=Otlp(endpoint=sys.argv[1], metrics=False, logs=False))
inner = Agent("inner", model=ScriptedModel("so")).as_tool(description="Helps.")
for number in range(int(sys.argv[2])):
    model = ScriptedModel([ToolCall("price", {"item": "lamp"}), ToolCall("inner", {"input": "x"})], "12 euros")
    Agent("shop", model=model, tools=[price, inner]).run_sync(f"question {number}")
telemetry.shutdown()
"""


def expected(path: Path) -> list[tuple[str, Any]]:
    """Return what the scores of a store have to be: one of each run of the agent."""
    rows = StoreReader(path).runs(agent="shop")
    return sorted(("shop", (2, f"{row.question} in {row.trace_id}")) for row in rows)


def test_runs_of_another_process_are_scored_once(tmp_path: Path) -> None:
    """On the right trace, without the nested ones; the scores are sent on, and the watcher ends at a signal."""
    path = tmp_path / "t.db"
    with otlp_receiver("http/protobuf") as received, watching(path, "--otlp", received.endpoint) as (process, url):
        run_python(AGENT, url, 12)
        eventually(lambda: len(scores(path)) >= 12)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
    assert len(StoreReader(path).runs(agent="shop")) == 12
    assert {row.parent_run_id is None for row in StoreReader(path).runs(agent="inner")} == {False}
    assert scores(path) == expected(path)
    assert output.count("asked  2") == 12
    sent = sorted(record.trace_id.hex() for record in received.logs)
    assert sent == sorted(row.trace_id for row in StoreReader(path).runs(agent="shop"))
    assert received.faults == []


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """Before anything of it was scored; the next watcher scores it, and what comes again is not scored again."""
    path = tmp_path / "t.db"
    with watching(path, quiet="600") as (process, url):
        run_python(AGENT, url, 3)
        process.send_signal(signal.SIGKILL)
    assert (len(StoreReader(path).runs(agent="shop")), scores(path)) == (3, [])
    with watching(path) as (process, url):
        run_python(AGENT, url, 3)
        eventually(lambda: len(scores(path)) >= 6)
        process.send_signal(signal.SIGKILL)
    with watching(path):
        pass
    assert len(scores(path)) == 6
    assert scores(path) == expected(path)


class Scene:
    """A watcher of a store whose time is the test's. Attributes: now: its time; told: runs that it has scored."""

    def __init__(self, path: Path) -> None:
        create_store(path)
        self.now, self.told = 1_000_000.0, list[str]()
        self.reader = StoreReader(path)
        self.arrivals = Arrivals(path, "x", lambda: self.now)
        self.store = ReceivedStore(path, self.arrivals.note)
        self.claims = Claims(path, "x", 60)
        self.claims.since()
        self._path = path

    def scored(self) -> list[str]:
        """Let the watcher look once; return the runs that it has scored so far."""

        def tell(row: Any, scores: Sequence[Score]) -> None:
            self.told.append(f"{row.agent} {[score.value for score in scores]}")

        with capture() as telemetry, closing(Recorder(self._path, telemetry, is_once=True)) as recorder:
            watch = Watch(self.reader, [tool_called("price")], self.claims, self.arrivals, recorder, None, tell)
            anyio.run(partial(watch.run, is_once=True, place=self.store.place))
        return self.told


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Give a watcher of a store."""
    found = Scene(tmp_path / "t.db")
    yield found
    for each in (found.store, found.claims, found.arrivals):
        each.close()


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 12 euros"


def recorded(*, nested: bool = False) -> list[ReadableSpan]:
    """Return the spans of a run in the order of their starts: its root is the first."""
    with capture(fixed=False) as captured:
        model = ScriptedModel(ToolCall("price", {"item": "lamp"}), "12 euros")
        agent = Agent("shop", model=model, tools=[price])
        if nested:
            inner = agent.as_tool(description="Helps.")
            agent = Agent("outer", model=ScriptedModel(ToolCall("shop", {"input": "x"}), "so"), tools=[inner])
        agent.run_sync("How much?")
        return sorted(captured.spans, key=lambda span: span.start_time or 0)


def test_late_spans_are_waited_for(scene: Scene) -> None:
    """For 10 s after the last span of the trace that came."""
    root, *others = recorded()
    scene.store.take_spans([root])
    assert scene.scored() == []
    scene.now += QUIET - 1
    scene.store.take_spans(others)
    scene.now += QUIET - 1
    assert scene.scored() == []
    scene.now += 1
    assert scene.scored() == ["shop [1.0]"]
    scene.store.take_spans([root, *others])
    scene.now += QUIET
    assert scene.scored() == ["shop [1.0]"]


def test_spans_that_never_end_to_come_are_not_waited_for(scene: Scene) -> None:
    """Longer than 60 s since the end of the run came."""
    root, *others = recorded()
    for _ in range(int(LONGEST) + 30):  # before it, spans may come for any time
        scene.now += 1
        scene.store.take_spans(others)
        assert scene.scored() == []
    scene.store.take_spans([root])
    for _ in range(int(LONGEST) - 1):
        scene.now += 1
        scene.store.take_spans(others)
        assert scene.scored() == []
    scene.now += 1
    assert scene.scored() == ["shop [1.0]"]


@pytest.mark.parametrize("order", [1, -1])
def test_nested_runs_are_not_scored(scene: Scene, order: int) -> None:
    """Also if the outer one comes later, or earlier."""
    for span in recorded(nested=True)[::order]:
        scene.store.take_spans([span])
        scene.now += 1
        scene.scored()
    scene.now += QUIET
    assert scene.scored() == ["outer [0.0]"]


def between_services() -> tuple[list[ReadableSpan], list[ReadableSpan]]:
    """Return the spans of a service that is asked by a tool of another one over HTTP, and those of the other one."""
    with capture(fixed=False) as captured:
        tracer = captured.tracer_provider.get_tracer("http")
        inner = Agent("inner", model=ScriptedModel("so"))

        @tool
        async def ask() -> str:
            """Ask the other service."""
            with tracer.start_as_current_span("POST"), tracer.start_as_current_span("POST /ask"):
                return str((await inner.run("x")).output)

        Agent("outer", model=ScriptedModel(ToolCall("ask", {}), "done"), tools=[ask]).run_sync("go")
        theirs: list[ReadableSpan] = [
            span
            for span in captured.spans
            if span.name == "POST /ask" or (span.attributes or {}).get(semconv.AGENT_NAME) == "inner"
        ]
        return theirs, [span for span in captured.spans if span not in theirs]


@pytest.mark.parametrize("is_first", [True, False])
def test_runs_that_other_services_ask_for_are_nested(scene: Scene, is_first: bool) -> None:
    """Whichever of the two sends first, and with spans of HTTP between them, which are of the run that asks."""
    theirs, ours = between_services()
    for spans in (theirs, ours) if is_first else (ours, theirs):
        scene.store.take_spans(spans)
        scene.now += 1
        assert scene.scored() == []
    scene.now += QUIET
    assert scene.scored() == ["outer [0.0]"]
    [outer] = scene.reader.runs(agent="outer")
    assert [span.name for span in scene.reader.spans(outer.run_id) if span.name.startswith("POST")] == [
        "POST",
        "POST /ask",
    ]


def test_a_run_that_comes_long_after_it_ended_is_scored(scene: Scene) -> None:
    """A Collector may have had to wait; what began before the first watch counts, too, as it came since."""
    old = recorded()
    assert old[0].end_time is not None
    scene.claims.since(old[0].end_time + 10**18)
    scene.store.take_spans(old)
    scene.now += QUIET
    assert scene.scored() == ["shop [1.0]"]


def test_runs_without_an_end_are_no_work(scene: Scene) -> None:
    """Spans whose root never comes are not scored, and are no longer waited for."""
    scene.store.take_spans([span for span in recorded() if (span.attributes or {}).get(semconv.PHASE) != semconv.RUN])
    scene.now += QUIET
    assert scene.scored() == []
    assert scene.arrivals.settled(scene.now) == scene.arrivals.unsettled(scene.now) == set()


def test_only_this_machine_may_send_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another address needs one; what is no address, and one that is taken, are named."""
    monkeypatch.delenv("PELLUCID_API_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="PELLUCID_API_TOKEN"), listening(address("0.0.0.0:0")):
        pass
    monkeypatch.setenv("PELLUCID_API_TOKEN", "secret")
    with listening(address("0.0.0.0:0")) as listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--listen 0.0.0.0:{port}"), listening(address(f"0.0.0.0:{port}")):
            pass
    for text in ("4320", "host:", ":1", "host:99999", "host:x"):
        with pytest.raises(ArgumentTypeError, match="is not an address such as"):
            address(text)
