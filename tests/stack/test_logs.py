"""Logs reach the address of Loki by the Collector: a late score is there, beside its trace."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from pellucid import Agent
from pellucid.scores import Scored, score
from pellucid.testing import ScriptedModel
from pellucid_exporters import Otlp, configure
from stack.scene import until

if TYPE_CHECKING:
    from stack.compose import Stack

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack, pytest.mark.short]


async def test_a_late_score_is_a_log_record_of_its_trace(stack: Stack) -> None:
    """With its name, value and explanation, and the service; Loki's part is played by a stand-in."""
    telemetry = configure("scored", otlp=Otlp(endpoint=stack["otel-collector"].url(port=4318)), console=False)
    try:
        result = await Agent("support", model=ScriptedModel("done")).run("go")
        assert telemetry.flush(30)
        about = Scored(trace_id=result.trace_id, span_id=result.span_id, run_id=result.run_id, agent="support")
        score(about, "correct", value=0.25, explanation="the price is old")
    finally:
        telemetry.shutdown()
    record = until(lambda: found(stack, result.trace_id), 60, "the score")
    assert record is not None
    assert base64.b64decode(record["spanId"]).hex() == result.span_id
    attributes = {pair["key"]: next(iter(pair["value"].values())) for pair in record["attributes"]}
    assert attributes["gen_ai.evaluation.name"] == "correct"
    assert attributes["gen_ai.evaluation.score.value"] == 0.25
    assert attributes["gen_ai.evaluation.explanation"] == "the price is old"
    assert {"key": "service.name", "value": {"stringValue": "scored"}} in record["resource"]


def found(stack: Stack, trace_id: str) -> dict[str, Any] | None:
    """Return the record of the score of a trace, once it has arrived."""
    with urlopen(stack["loki"].url("/received"), timeout=10) as answer:
        records = json.load(answer)
    of_trace = [record for record in records if base64.b64decode(record.get("traceId", "")).hex() == trace_id]
    return next((record for record in of_trace if record.get("eventName") == "gen_ai.evaluation.result"), None)
