"""Events of the GenAI conventions, as a collector gets them."""

from __future__ import annotations

import pytest

from pellucid import Agent, score
from pellucid.scores import Score, Scored, scores_of
from pellucid.scores.evidence import evidence_of
from pellucid.scores.record import record
from pellucid.testing import ScriptedModel
from pellucid_exporters import Otlp, configure
from support.conventions import ATTRIBUTES, EVENTS, TYPES
from support.otlp_receiver import attributes_of, otlp_receiver

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

NAME = "gen_ai.evaluation.result"


async def test_scores_are_events_of_the_conventions() -> None:
    """Named as they say, in the trace of what is judged, with what they require, their types, and no other names.

    A score of a run, one of an answer that only its id names, and one that a scorer could not give.
    """

    def failing(output: str) -> bool:
        raise LookupError(output)

    facts = EVENTS[NAME]
    with otlp_receiver("http/protobuf") as receiver:
        telemetry = configure("shop", otlp=Otlp(endpoint=receiver.endpoint), set_global=False)
        result = await Agent("shop", model=ScriptedModel("14 euros"), telemetry=telemetry).run("How much?")
        score(result, "correct", value=1, label="pass", explanation="as listed", by="ann", telemetry=telemetry)
        score(Scored(response_id="resp-1"), "polite", label="yes", telemetry=telemetry)
        evidence = evidence_of(result)
        [unjudged] = await scores_of([failing], evidence)
        record(evidence.scored, unjudged, telemetry)
        assert telemetry.flush()
        telemetry.shutdown()
        assert receiver.faults == []
        records = [log for log in receiver.logs if log.event_name == NAME]
    assert unjudged == Score(name="failing", by="failing", error_type="LookupError", explanation=unjudged.explanation)
    assert len(records) == 3
    for found in records:
        attributes = attributes_of(found)
        theirs = {name for name in attributes if name in ATTRIBUTES or name.startswith("gen_ai.")}
        assert facts.required <= theirs <= facts.required | facts.allowed
        for name in theirs:
            assert type(attributes[name]) is TYPES[ATTRIBUTES[name]]
    ids = [(log.trace_id.hex(), log.span_id.hex()) for log in records]
    assert ids == [(result.trace_id, result.span_id), ("", ""), (result.trace_id, result.span_id)]
    assert [attributes_of(log).get("gen_ai.response.id") for log in records] == [None, "resp-1", None]
    assert [attributes_of(log).get("error.type") for log in records] == [None, None, "LookupError"]
