"""Tools that the model's vendor runs, in a run."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid import Agent, ConfigError, FallbackModel, ProviderTool, ToolCall
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured
from support.runs import within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

SEARCH = ProviderTool(vendor="gemini", type="google_search")


class Gemini(ScriptedModel):
    provider_tools = frozenset({("gemini", "google_search")})


@pytest.mark.parametrize("model", [ScriptedModel("hi", name="m"), FallbackModel(Gemini("hi"), ScriptedModel(name="m"))])
async def test_a_model_that_cannot_run_one_refuses_before_the_first_request(model: Any, telemetry: Captured) -> None:
    """The error names the model, the tool and the remedy; a fallback model must run it, too."""
    with pytest.raises(
        ConfigError, match=r"model 'm' of pellucid\.testing cannot run the provider tool 'google_search'"
    ):
        await within(Agent("a", model=model, tools=[SEARCH]).run("x"))
    assert not telemetry.find("chat")


async def test_one_is_offered_under_the_policy_and_never_dispatched(telemetry: Captured) -> None:
    """The policy can deny it like any tool; a call of it is answered with an error."""
    model = Gemini(ToolCall("google_search", {}), "done")
    result = await within(Agent("a", model=model, tools=[SEARCH]).run("x"))
    assert result.messages[2].parts[0].is_error  # type: ignore[union-attr]
    assert [tool.name for tool in model.requests[0].tools] == ["google_search"]
    model = Gemini("done")
    await within(Agent("b", model=model, tools=[SEARCH], policy=lambda request: "deny").run("x"))
    assert model.requests[0].tools == ()


@pytest.mark.parametrize(
    ("vendor", "kind", "text"),
    [
        ("gemini", "gogle_search", "type='gogle_search'.*did you mean 'google_search'"),
        ("google", "x", "vendor='google'.*use one of anthropic, gemini, openai"),
    ],
)
def test_unknown_ones_are_refused_where_they_are_written(vendor: str, kind: str, text: str) -> None:
    """With the nearest right name, or all of them."""
    with pytest.raises(ConfigError, match=text):
        ProviderTool(vendor=vendor, type=kind)
