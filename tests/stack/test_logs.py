"""Logs reach the address of Loki by the Collector: a late score is there, beside its trace."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from pellucid import Agent
from pellucid.scores import Scored, score
from pellucid.testing import ScriptedModel
from pellucid_exporters import Otlp, configure
from stack.scene import until
from stack.servers import LOKI

if TYPE_CHECKING:
    from stack.compose import Service, Stack

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack, pytest.mark.short]


async def test_a_late_score_is_a_log_record_of_its_trace(stack: Stack) -> None:
    """With its name, value and explanation, and the service; a stand-in plays the part of Loki unless it was built."""
    telemetry = configure("scored", otlp=Otlp(endpoint=stack["otel-collector"].url(port=4318)), console=False)
    try:
        result = await Agent("support", model=ScriptedModel("done")).run("go")
        assert telemetry.flush(30)
        about = Scored(trace_id=result.trace_id, span_id=result.span_id, run_id=result.run_id, agent="support")
        score(about, "correct", value=0.25, explanation="the price is old")
    finally:
        telemetry.shutdown()
    find = in_loki if LOKI.is_built else in_stand_in
    record = until(lambda: find(stack["loki"], result.trace_id), 60, "the score")
    assert record is not None
    expected = {
        "service_name": "scored",
        "span_id": result.span_id,
        "gen_ai_evaluation_name": "correct",
        "gen_ai_evaluation_score_value": "0.25",
        "gen_ai_evaluation_explanation": "the price is old",
    }
    assert {name: record.get(name) for name in expected} == expected


def in_loki(loki: Service, trace_id: str) -> dict[str, str] | None:
    """Return the labels of the score of a trace, by the query of the docs."""
    query = f'{{service_name="scored"}} | gen_ai_evaluation_name!="" | trace_id="{trace_id}"'
    with urlopen(loki.url(f"/loki/api/v1/query_range?{urlencode({'query': query})}"), timeout=10) as answer:
        streams = json.load(answer)["data"]["result"]
    return next((stream["stream"] for stream in streams), None)


def in_stand_in(loki: Service, trace_id: str) -> dict[str, str] | None:
    """Return what Loki would make of the record of the score of a trace."""
    with urlopen(loki.url("/received"), timeout=10) as answer:
        records = json.load(answer)
    for record in records:
        if record.get("eventName") == "gen_ai.evaluation.result" and _hex(record.get("traceId", "")) == trace_id:
            pairs = [*record["attributes"], *record["resource"]]
            labels = {pair["key"].replace(".", "_"): str(next(iter(pair["value"].values()))) for pair in pairs}
            return {**labels, "span_id": _hex(record["spanId"])}
    return None


def _hex(encoded: str) -> str:
    return base64.b64decode(encoded).hex()
