"""Metrics of the newest conventions, by the standard opt-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pellucid import Agent, FallbackModel, Message, ModelResponse, Usage
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

USAGE = "gen_ai.client.inference.usage"
ANSWER = ModelResponse(
    message=Message("assistant", "hi"),
    usage=Usage(input_tokens=30, output_tokens=12, cache_read_input_tokens=20, by_modality={"audio.input_tokens": 10}),
)


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captured]:
    """Capture the telemetry of an application that opts in."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
    with capture() as captured:
        captured.is_checked = False  # it knows the names of release 1.41
        yield captured


async def test_metrics_of_model_calls_have_their_newest_names(telemetry: Captured) -> None:
    """With the opt-in, the metrics of model calls have their newest names and none has an old one."""
    async with Agent("a", model=ScriptedModel(lambda request: ANSWER)).stream("go") as events:
        async for _ in events:
            pass
    names = {point.name for point in telemetry.metrics}
    of_client = {name for name in names if name.startswith("gen_ai.client.")}
    assert of_client == {
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.time_to_first_chunk",
        "gen_ai.client.inference.operation.input_tokens",
        "gen_ai.client.inference.operation.output_tokens",
        f"{USAGE}.input_tokens",
        f"{USAGE}.output_tokens",
        f"{USAGE}.cache_read.input_tokens",
    }


async def test_tokens_are_counted_by_modality(telemetry: Captured) -> None:
    """Tokens are counted by modality, and those that the vendor does not tell apart count as `unknown`."""
    await within(Agent("a", model=ScriptedModel(lambda request: ANSWER)).run("go"))
    counted = {
        (point.name.removeprefix(f"{USAGE}."), point.attributes["gen_ai.token.modality"]): point.value
        for point in telemetry.metrics
        if point.name.startswith(USAGE)
    }
    assert counted == {
        ("input_tokens", "audio"): 10,
        ("input_tokens", "unknown"): 20,
        ("output_tokens", "unknown"): 12,
        ("cache_read.input_tokens", "unknown"): 20,
    }
    assert telemetry.histogram("gen_ai.client.inference.operation.input_tokens").value == 30


async def test_a_call_that_failed_counts_zero(telemetry: Captured) -> None:
    """A failed model call counts zero tokens."""
    model = FallbackModel(ScriptedModel(OSError("down"), name="first"), ScriptedModel("hi", name="second"))
    await within(Agent("a", model=model).run("go"))
    labels = {"gen_ai_request_model": "first", "error_type": "OSError", "gen_ai_token_modality": "unknown"}
    assert telemetry.value(f"{USAGE}.input_tokens", **labels) == 0
