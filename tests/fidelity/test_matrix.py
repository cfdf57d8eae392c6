from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings

from fidelity.scripts import ReaderError, Script, Stage, scripts
from pellucid import PellucidError, RunResult, semconv
from pellucid_exporters.testing import capture, check_telemetry
from support.otlp_encodings import compare_lines, compare_spans
from support.recorder_twins import Twins

LEFT_BEHIND = Script([["quick", "hangs"]], ["hub"], "text", True, False, "deadline", "none", 1, 2, True, stubborn=True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@example(script=LEFT_BEHIND)
@example(script=replace(LEFT_BEHIND, reader="reads"))
@example(script=replace(LEFT_BEHIND, reader="sync"))
@example(script=replace(LEFT_BEHIND, steps=[["quick", "sub_agent"]]))
@example(script=replace(LEFT_BEHIND, steps=[["sub_agent", "sub_agent"]], ending="nothing"))
@given(script=scripts)
def test_whatever_happens_telemetry_is_true(backend: str, script: Script) -> None:
    """Runs of any shape, ended in any way, leave spans, metrics, events and log lines that agree; none is left open.

    The OpenTelemetry SDK's recorder would have recorded the same.
    """
    with capture(capture=script.capture_policy, fixed=script.fixed, recorder="fast") as telemetry:
        twins = Twins(telemetry)
        stage = Stage(script, telemetry)
        anyio.run(stage.play, backend=backend)
    check_telemetry(telemetry)
    twins.compare()
    compare_spans(telemetry.spans)
    compare_lines(telemetry.logs)
    assert stage.is_settled
    assert stage.late == []
    runs = Counter((span.attributes or {})[semconv.OUTCOME] for span in telemetry.find("invoke_agent outer"))
    begun = script.runs + stage.resumed
    assert runs.total() == begun or (script.ending == "native" and runs.total() < begun)
    if len(stage.final) == script.runs and script.reader not in ("leaves", "raises"):
        assert runs == stage.expected
    for outcome in stage.outcomes:
        assert outcome is None or isinstance(outcome, RunResult | PellucidError | ReaderError), repr(outcome)
    if script.succeeds:
        assert [outcome.status in ("completed", "limit_reached") for outcome in stage.final] == [True] * script.runs
        assert {outcome.output for outcome in stage.final} == {"done"}
