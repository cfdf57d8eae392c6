"""Scores: one log record in the trace of what is judged, an event for listeners, a histogram with labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN_CONTEXT, format_span_id

from pellucid import Agent, CapturePolicy, ConfigError, semconv
from pellucid.events import ScoreRecorded
from pellucid.scores import Score, Scored, score
from pellucid.semconv.scores import (
    EVALUATION_EXPLANATION,
    EVALUATION_NAME,
    EVALUATION_RESULT,
    EVALUATION_SCORE,
    EVALUATION_SCORE_LABEL,
    EVALUATION_SCORE_VALUE,
)
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.testing import capture
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio


def records(telemetry: Captured) -> list[dict[str, Any]]:
    """Return the log lines of scores."""
    return [dict(line) for line in telemetry.logs if line["event"] == EVALUATION_RESULT]


async def test_a_run_is_scored_in_its_trace() -> None:
    """The record has the conventions' attributes and the ids of the run's span; the histogram its agent and version."""
    with capture() as telemetry:
        result = await Agent("support", model=ScriptedModel("done"), version="2").run("go")
        given = score(result, "correct", value=0.5, label="partly", explanation="no price", by="ann")
    assert given == Score(name="correct", value=0.5, label="partly", explanation="no price", by="ann")
    root = format_span_id(telemetry.span("invoke_agent").context.span_id)
    assert (result.span_id, result.agent, result.agent_version) == (root, "support", "2")
    [record] = records(telemetry)
    assert (record["trace_id"], record["span_id"], record["run_id"]) == (result.trace_id, result.span_id, result.run_id)
    found = {name: value for name, value in record.items() if name.startswith(("gen_ai.", "pellucid."))}
    assert found == {
        EVALUATION_NAME: "correct",
        EVALUATION_SCORE_VALUE: 0.5,
        EVALUATION_SCORE_LABEL: "partly",
        EVALUATION_EXPLANATION: "no price",
        "pellucid.evaluation.by": "ann",
    }
    labels = {EVALUATION_NAME: "correct", semconv.AGENT_NAME: "support", semconv.AGENT_VERSION: "2"}
    point = telemetry.histogram(EVALUATION_SCORE, **{name.replace(".", "_"): value for name, value in labels.items()})
    assert (point.count, point.value) == (1, 0.5)
    assert {exemplar.trace_id for exemplar in point.exemplars} == {result.trace_id}


async def test_a_span_that_is_open_gets_a_span_event() -> None:
    """One that has ended does not; labels are those of its attributes."""
    with capture() as telemetry:
        agent = Agent("support", model=ScriptedModel("done"))
        spans: list[trace.Span] = []
        agent.on("inference.started", lambda event: spans.append(trace.get_current_span()))
        agent.on("inference.started", lambda event: score(spans[0], "early", value=1))
        await agent.run("go")
        score(spans[0], "late", value=True)
    chat = telemetry.span("chat")
    events = [dict(event.attributes or {}) for event in chat.events if event.name == EVALUATION_RESULT]
    assert events == [{EVALUATION_NAME: "early", EVALUATION_SCORE_VALUE: 1.0}]
    early, late = records(telemetry)
    assert early["span_id"] == late["span_id"] == format_span_id(chat.context.span_id)
    model = chat.attributes[semconv.REQUEST_MODEL]
    point = telemetry.histogram(EVALUATION_SCORE, gen_ai_evaluation_name="late")
    assert (point.attributes[semconv.REQUEST_MODEL], point.value) == (model, 1.0)


async def test_listeners_hear_of_scores() -> None:
    """Also of one by ids only, of another process."""
    heard: list[ScoreRecorded] = []
    with capture() as telemetry:
        score(Scored(run_id="r-1", trace_id="ab" * 16, span_id="cd" * 8), "thumb", label="down", by="user-7")
        score(Scored(response_id="resp-1", agent="support"), "thumb", value=0)
        heard += [event for event in telemetry.events if isinstance(event, ScoreRecorded)]
    one, other = heard
    assert (one.run_id, one.trace_id, one.span_id, one.score, one.value, one.label, one.by) == (
        "r-1", "ab" * 16, "cd" * 8, "thumb", None, "down", "user-7",
    )  # fmt: skip
    assert (other.response_id, other.agent, other.trace_id, other.value) == ("resp-1", "support", "0" * 32, 0.0)


async def test_agents_hear_of_the_scores_of_their_runs() -> None:
    """Also long after the run, by ids with the agent's name; not of those of others, and not once they have left."""
    heard: list[ScoreRecorded] = []
    with capture() as telemetry:
        agent = Agent("support", model=ScriptedModel("done"), telemetry=telemetry)
        leave = agent.on(ScoreRecorded, heard.append)
        result = await agent.run("go")
        score(result, "correct", value=1, telemetry=telemetry)
        score(Scored(run_id=result.run_id, agent="support"), "thumb", label="up", telemetry=telemetry)
        score(Scored(run_id="r", agent="other"), "thumb", label="up", telemetry=telemetry)
        leave()
        score(result, "late", value=1, telemetry=telemetry)
    assert [(event.score, event.run_id) for event in heard] == [("correct", result.run_id), ("thumb", result.run_id)]


def test_explanations_follow_the_capture_policy() -> None:
    """They are redacted, and left out in the mode `metadata`."""
    with capture() as telemetry:
        score(Scored(run_id="r"), "leak", value=0, explanation="it wrote sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")
        [record] = records(telemetry)
        assert "abcdefghijkl" not in record[EVALUATION_EXPLANATION]
    with capture(capture=CapturePolicy("metadata")) as telemetry:
        score(Scored(run_id="r"), "leak", value=0, explanation="it wrote a lot")
        [record] = records(telemetry)
        assert EVALUATION_EXPLANATION not in record


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "good"])
def test_what_is_no_score_is_refused(value: Any) -> None:
    """Histograms would drop it, or show it as something else."""
    with pytest.raises(ConfigError, match=r"score 'x': value=.* is not a number of at least 0"):
        score(Scored(run_id="r"), "x", value=value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "", "value": 1}, "is not a name"),
        ({"name": "x" * 129, "value": 1}, "is not a name"),
        ({"name": "x", "label": "l" * 129}, "a label has at most 128 characters; use explanation="),
        ({"name": "x"}, "give a value, a label, or both"),
    ],
)
def test_an_error_names_the_score(options: dict[str, Any], words: str) -> None:
    """And what is wrong with it."""
    with pytest.raises(ConfigError, match=words):
        score(Scored(run_id="r"), **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Scored, "nothing says what it is about"),
        (lambda: Scored(trace_id="AB" * 16), "is not 32 hexadecimal digits"),
        (lambda: Scored(span_id="ab" * 8, run_id="r"), "needs a trace_id"),
        (lambda: score(INVALID_SPAN_CONTEXT, "x", value=1), "the span is not recorded"),
        (lambda: score("run-1", "x", value=1), "str is no result, span, event or Scored"),  # type: ignore[arg-type]
    ],
)
def test_a_score_needs_something_to_be_about(make: Any, words: str) -> None:
    """Ids are as OpenTelemetry writes them."""
    with pytest.raises(ConfigError, match=words):
        make()


async def test_the_store_has_scores_of_a_run(tmp_path: Path) -> None:
    """Those that came later, by the id of the run, too."""
    with storing(tmp_path / "t.db") as telemetry:
        result = await Agent("support", model=ScriptedModel("done"), telemetry=telemetry).run("go")
        score(result, "correct", value=1, telemetry=telemetry)
        score(Scored(run_id=result.run_id), "thumb", label="up", telemetry=telemetry)
    reader = StoreReader(tmp_path / "t.db")
    found = [event.payload for event in reader.events(result.run_id) if event.name == ScoreRecorded.name]
    assert [(payload["score"], payload.get("value"), payload.get("label")) for payload in found] == [
        ("correct", 1.0, None),
        ("thumb", None, "up"),
    ]
