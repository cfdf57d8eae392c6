from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import Agent, CapturePolicy, DiscoveryContext, DiscoveryProvider, Tool, ToolCall, semconv, tool
from pellucid.telemetry import current_default
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import FIRST_READING, TICK, Captured, capture, check_telemetry
from support.processes import run_pytest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def run(telemetry: Captured | None = None) -> None:
    """Run an agent that calls one tool."""
    model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "3")
    Agent("a", model=model, tools=[add], telemetry=telemetry).run_sync("Add.")


def test_it_is_the_default_while_it_is_entered() -> None:
    """Captured telemetry is the default within the block, and the one before is the default again after it."""
    before = current_default()
    with capture() as outer:
        with capture() as inner:
            run()
        assert current_default() is outer
        run()
    assert current_default() == before
    assert len(inner.find("invoke_agent")) == len(outer.find("invoke_agent")) == 1


@pytest.mark.parametrize("ended", [0, 1])
def test_those_that_overlap_end_in_any_order(ended: int) -> None:
    """Overlapping blocks end in any order: the open one captures, and at last the default before both is restored."""
    before = current_default()
    both = capture(), capture()
    both[0].__enter__()
    both[1].__enter__()
    run()
    both[ended].__exit__(None, None, None)
    rest = both[1 - ended]
    assert current_default() is rest
    run()
    rest.__exit__(None, None, None)
    assert current_default() == before
    assert [len(one.find("invoke_agent")) for one in both] == [ended, 2 - ended]


def test_one_that_is_entered_again_ends_from_within() -> None:
    """A block that is entered again within another ends first: the one in between goes on to capture."""
    before = current_default()
    outer, inner = capture(), capture()
    with outer, inner:
        with outer:
            assert current_default() is outer
        assert current_default() is inner
        run()
    assert current_default() == before
    assert (len(outer.spans), len(inner.find("invoke_agent"))) == (0, 1)


def test_it_can_be_given_to_an_agent() -> None:
    """Captured telemetry can be given to an agent without being entered."""
    telemetry = capture(capture=CapturePolicy("off"))
    run(telemetry)
    assert telemetry.tree()[0][0] == "invoke_agent a"
    assert semconv.INPUT_DIGEST not in (telemetry.span("invoke_agent").attributes or {})


def test_ids_and_clock_are_fixed() -> None:
    """The first trace has the id 1, and the clock advances by a millisecond with each reading."""
    with capture() as telemetry:
        run()
    root = telemetry.span("invoke_agent")
    assert root.context is not None
    assert (root.context.trace_id, root.context.span_id, root.start_time) == (1, 1, FIRST_READING)
    durations = {(span.end_time or 0) - (span.start_time or 0) for span in telemetry.spans}
    assert all(duration % TICK == 0 for duration in durations)


def test_ids_and_clock_are_real_on_request() -> None:
    """Ids and the clock are real with `fixed=False`."""
    with capture(fixed=False) as telemetry:
        run()
    root = telemetry.span("invoke_agent")
    assert root.context is not None
    assert root.context.trace_id > 2**64
    assert root.start_time is not None
    assert root.start_time > FIRST_READING


def test_metrics_can_be_read_twice() -> None:
    """Metrics can be read twice, with their exemplars."""
    with capture() as telemetry:
        run()
    first, second = (telemetry.histogram(semconv.TOOL_DURATION) for _ in range(2))
    assert first == second
    assert first.exemplars[0].trace_id == f"{1:032x}"
    assert first.unit == "s"
    assert sum(first.buckets) == first.count == 1


def test_points_are_found_by_some_of_their_attributes() -> None:
    """A point is found by some of its attributes, whose names may have underscores; `None` is their absence."""
    with capture() as telemetry:
        run()
    found = telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="static", error_type=None)
    assert found == telemetry.histogram(semconv.DISCOVERY_DURATION.name, **{semconv.PROVIDER_ID: "static"})
    assert telemetry.value(semconv.CATALOG_SIZE) == 1
    with pytest.raises(LookupError, match=r"0 points of 'pellucid\.tool\.discovery\.duration'"):
        telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="other")


def test_spans_are_found_by_name_or_predicate() -> None:
    """One span must match a name or predicate, and the error names the spans that there are."""
    with capture() as telemetry:
        run()

    def is_tool(span: ReadableSpan) -> bool:
        return span.name == "execute_tool add"

    assert telemetry.span(is_tool) is telemetry.span("execute_tool")
    with pytest.raises(LookupError, match=r"2 spans match 'chat'; those that ended: .*'invoke_agent a'"):
        telemetry.span("chat")


def test_spans_that_have_not_ended_are_named() -> None:
    """A span that has not ended is in `unended`, and in no tree."""
    telemetry = capture()
    span = telemetry.tracer_provider.get_tracer("test").start_span("open")
    assert (telemetry.unended, telemetry.tree()) == (["open"], [])
    span.end()
    assert (telemetry.unended, telemetry.tree()) == ([], [("open", [])])


def test_the_fixture_captures(telemetry: Captured) -> None:
    """The fixture `telemetry` captures the runs of a test."""
    run()
    assert telemetry.span("invoke_agent").name == "invoke_agent a"
    assert telemetry.logs[-1]["event"] == "run.completed"
    assert telemetry.events[0].name == "run.started"


def test_the_fixture_checks_what_it_captured(tmp_path: Path) -> None:
    """A test that leaves wrong telemetry is in error, unless it says that this is on purpose."""
    (tmp_path / "test_it.py").write_text(
        """
from pellucid import Agent
from pellucid.testing import ScriptedModel

def bend(telemetry):
    Agent("a", model=ScriptedModel("x")).run_sync("hi")
    telemetry.logs.clear()

def test_true(telemetry):
    Agent("a", model=ScriptedModel("x")).run_sync("hi")

def test_bent(telemetry):
    bend(telemetry)

def test_bent_on_purpose(telemetry):
    bend(telemetry)
    telemetry.is_checked = False
"""
    )
    done = run_pytest(tmp_path)
    assert "3 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_bent " in done.stdout
    assert "has 0 log lines instead of one" in done.stdout


@pytest.mark.telemetry(fixed=True)
def test_the_fixture_is_fixed_on_request(telemetry: Captured) -> None:
    """The marker `telemetry` passes its arguments to `capture()`."""
    run()
    assert telemetry.span("invoke_agent").start_time == FIRST_READING


def test_the_fixture_sees_slow_hubs(telemetry: Captured) -> None:
    """The fixture's clock is real: a hub that takes longer than its objective is counted."""
    hub = DiscoveryProvider(FakeHub([add], latency=0.05), id="hub", objective=0.01)
    Agent("a", model=ScriptedModel("x"), providers=[hub]).run_sync("hi")
    assert telemetry.value(semconv.DISCOVERY_OVER_OBJECTIVE, pellucid_provider_id="hub") == 1
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="hub").value >= 0.05


@pytest.mark.anyio
async def test_spans_that_outlast_their_run_are_waited_for(telemetry: Captured) -> None:
    """`settle` waits for spans that outlast their run, for as long as asked, and names those that are left."""
    gate = anyio.Event()
    hub = DiscoveryProvider(GatedHub(gate), id="hub", patience=0)
    assert (await Agent("a", model=ScriptedModel("x"), providers=[hub]).run("hi")).degraded == ("hub",)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s: \['discover_tools hub'\]"):
        await telemetry.settle(0.01)
    with pytest.raises(AssertionError, match=r"'discover_tools hub' .* wait for it: telemetry\.settle\(\)"):
        check_telemetry(telemetry)
    gate.set()
    await telemetry.settle()
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, pellucid_provider_id="hub").count == 1


class GatedHub:
    """A hub that answers when an event is set."""

    def __init__(self, gate: anyio.Event) -> None:
        self.gate = gate

    async def fetch_catalog(self, ctx: DiscoveryContext) -> list[Tool]:
        """Wait, and return no tools."""
        await self.gate.wait()
        return []


def test_an_application_may_configure_within_a_test(tmp_path: Path) -> None:
    """An application may call `configure` within a test: the test keeps its telemetry, and the next has its own."""
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure

@pytest.mark.parametrize("number", [1, 2])
def test_it(telemetry, number):
    configured = configure("shop")
    Agent("a", model=ScriptedModel("x")).run_sync("hi")
    assert len(telemetry.find("invoke_agent")) == 1
    configured.shutdown()
    Agent("a", model=ScriptedModel("x")).run_sync("hi")
    assert len(telemetry.find("invoke_agent")) == 2
"""
    )
    assert "2 passed" in run_pytest(tmp_path).stdout


def test_no_model_is_called_in_a_whole_suite(tmp_path: Path) -> None:
    """A vendor's model fails with `--no-model-calls` or its setting, unless the test has the marker."""
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from pellucid import Agent, ConfigError
from pellucid.models import OpenAIModel
from pellucid.testing import ScriptedModel

agent = Agent("a", model=OpenAIModel("gpt-6-sol", api_key="none", base_url="http://127.0.0.1:1"))

def test_called():
    agent.run_sync("hi")

def test_replaced():
    with agent.override(model=ScriptedModel("x")):
        assert agent.run_sync("hi").output == "x"

@pytest.mark.model_calls
def test_exempt():
    with pytest.raises(Exception, match="onnect"):
        agent.run_sync("hi")
"""
    )
    done = run_pytest(tmp_path, "--no-model-calls")
    assert "1 failed, 2 passed" in done.stdout
    assert "ConfigError: OpenAIModel('gpt-6-sol'" in done.stdout
    (tmp_path / "pytest.ini").write_text("[pytest]\nno_model_calls = true")
    assert "1 failed, 2 passed" in run_pytest(tmp_path).stdout


def test_the_page_on_testing_shows_tests_that_pass(tmp_path: Path) -> None:
    """The examples of the fixture on the page on testing are tests that pass."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    for number in (1, 2):
        code = page.split("With pytest")[1].split("```python\n")[number].split("```")[0]
        (tmp_path / f"test_page{number}.py").write_text(code)
    assert "2 passed" in run_pytest(tmp_path).stdout


def test_testing_does_not_import_pytest() -> None:
    """`pellucid_exporters.testing` does not import pytest."""
    code = "import sys, pellucid_exporters.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
