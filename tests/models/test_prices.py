from __future__ import annotations

import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, Message, ModelResponse, ToolCall, Usage, semconv, tool
from pellucid.models import Price, PriceTable, PublishedPrices
from pellucid.models import prices as prices_module
from pellucid.testing import ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

TABLE = PriceTable({"scripted": Price(input=2.0, output=10.0, cache_read=0.5)})


@tool
async def look() -> str:
    """Look."""
    return "seen"


def answer(content: Any, **usage: Any) -> ModelResponse:
    """Return an answer with this usage."""
    message = Message("assistant", content)
    return ModelResponse(
        message=message, usage=Usage(**usage), finish_reason="tool_call" if message.tool_calls else "stop"
    )


async def test_a_call_has_its_cost_and_a_run_the_sum(telemetry: Captured) -> None:
    """A call has its cost and a run the sum, on the result, on spans and as a counter."""
    model = ScriptedModel(
        answer([ToolCall("look")], input_tokens=1_000_000, output_tokens=100_000),
        answer("done", input_tokens=1_000_000, output_tokens=0, cache_read_input_tokens=1_000_000),
    )
    result = await within(Agent("a", model=model, tools=[look], prices=TABLE).run("go"))
    assert result.usage.cost == pytest.approx(3.0 + 0.5)
    costs = [attributes(span)[semconv.COST_USD] for span in telemetry.spans if span.name == "chat scripted"]
    assert costs == pytest.approx([3.0, 0.5])
    assert attributes(telemetry.span("invoke_agent"))[semconv.COST_USD] == pytest.approx(3.5)
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.cost"]
    assert point.value == pytest.approx(3.5)
    assert dict(point.attributes) == {
        "gen_ai.provider.name": "pellucid.testing",
        "gen_ai.request.model": "scripted",
    }


async def test_an_unknown_cost_is_absent(telemetry: Captured) -> None:
    """An unknown cost is neither an attribute nor a metric."""
    for model, prices in (
        (ScriptedModel(answer("x", input_tokens=10, output_tokens=1)), PublishedPrices()),
        (ScriptedModel(answer("x", input_tokens=10)), TABLE),
    ):
        result = await within(Agent("a", model=model, prices=prices).run("go"))
        assert result.usage.cost is None
    assert not [span for span in telemetry.spans if semconv.COST_USD in attributes(span)]
    assert not [point for point in telemetry.metrics if point.name == "pellucid.cost"]


async def test_a_cost_that_the_vendor_says_goes_first() -> None:
    """The cost that the vendor gives wins over the price table."""
    model = ScriptedModel(answer("x", input_tokens=10, output_tokens=1, cost=0.25))
    assert (await within(Agent("a", model=model, prices=TABLE).run("go"))).usage.cost == 0.25


async def test_prices_that_fail_do_not_fail_the_run(telemetry: Captured) -> None:
    """A price function that raises is counted, and the cost is unknown."""

    def broken(provider_name: str, model: str, usage: Usage, asked: str) -> float | None:
        raise KeyError(model)

    result = await within(Agent("a", model=ScriptedModel("x"), prices=broken).run("go"))
    assert result.usage.cost is None
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.telemetry.errors"]
    assert (point.attributes["pellucid.telemetry.part"], point.value) == ("prices", 1)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), "3", True])
async def test_what_is_no_cost_is_a_fault_of_the_prices(telemetry: Captured, cost: Any) -> None:
    """A price function that returns no cost is counted, and the cost is unknown."""
    result = await within(Agent("a", model=ScriptedModel("x"), prices=lambda *_: cost).run("go"))
    assert result.usage.cost is None
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.telemetry.errors"]
    assert point.attributes["pellucid.telemetry.part"] == "prices"


async def test_a_cost_may_be_any_number() -> None:
    """A cost may be any number, such as a `Decimal`."""
    model = ScriptedModel(answer([ToolCall("look")]), answer("done"))
    quarter: Any = Decimal("0.25")
    result = await within(Agent("a", model=model, tools=[look], prices=lambda *_: quarter).run("go"))
    assert (result.usage.cost, type(result.usage.cost)) == (0.5, float)


async def test_a_table_knows_the_model_by_the_name_that_was_asked_for() -> None:
    """A price table knows a model by the name that was asked for or by the one that answered."""
    usage = Usage(input_tokens=1_000_000, output_tokens=0)
    for asked, answered, dollars in (
        ("gpt-6-sol", "gpt-6-sol-2026-08-07", 1.0),
        ("my-deployment", "gpt-6-sol-2026-08-07", 2.0),
        ("gpt-6-sol", "gpt-6-sol-2026-09-01", 3.0),
    ):
        response = ModelResponse(message=Message("assistant", "x"), usage=usage, model=answered)
        model = ScriptedModel(response, name=asked)
        table = PriceTable(
            {
                "pellucid.testing:gpt-6-sol": Price(input=1.0, output=0.0),
                "my-deployment": Price(input=2.0, output=0.0),
                "gpt-6-sol-2026-09-01": Price(input=3.0, output=0.0),
            },
            otherwise=lambda *_: 99.0,
        )
        assert (await within(Agent("a", model=model, prices=table).run("go"))).usage.cost == dollars


async def test_a_published_price_of_the_name_that_was_asked_for() -> None:
    """The published price of the requested name holds if that of the answering model is unknown."""
    usage = Usage(input_tokens=1_000_000, output_tokens=0)
    prices = PublishedPrices()
    assert prices("openai", "behind-a-gateway", usage, "gpt-6-sol") == prices("openai", "gpt-6-sol", usage)


async def test_published_prices_of_a_host_without_a_cache() -> None:
    """Together has published prices."""
    usage = Usage(input_tokens=1_000_000, output_tokens=0)
    assert PublishedPrices()("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo", usage)


async def test_a_share_that_cannot_be_is_absent(telemetry: Captured) -> None:
    """A cached share above one is absent, and the cost of such a call is unknown."""
    odd = Usage(input_tokens=100, output_tokens=1, cache_read_input_tokens=150)
    model = ScriptedModel(ModelResponse(message=Message("assistant", "x"), usage=odd))
    result = await within(Agent("a", model=model, prices=TABLE).run("go"))
    assert result.usage.cost is None
    assert semconv.CACHED_SHARE not in attributes(telemetry.span("chat scripted"))
    assert not [point for point in telemetry.metrics if point.name == "pellucid.prompt_cache.share"]
    price = Price(input=1.0, output=1.0)
    assert price.of(Usage(input_tokens=-1, output_tokens=1)) is None
    assert (
        price.of(Usage(input_tokens=4, output_tokens=1, cache_read_input_tokens=3, cache_write_input_tokens=2)) is None
    )


async def test_prices_that_cannot_be_are_refused() -> None:
    """An invalid price is refused when it is made."""
    for wrong in ({"input": -1.0}, {"output": float("nan")}, {"cache_read": float("inf")}, {"cache_write": -0.1}):
        [name] = wrong
        with pytest.raises(ConfigError, match=rf"Price\({name}=.*\): must be US dollars"):
            Price(**{"input": 1.0, "output": 1.0, **wrong})


async def test_the_cached_share_is_on_the_span_and_a_metric(telemetry: Captured) -> None:
    """The cached share is on the span and in a metric if input and cached tokens are known."""
    model = ScriptedModel(
        answer([ToolCall("look")], input_tokens=100, output_tokens=1, cache_read_input_tokens=0),
        answer([ToolCall("look")], input_tokens=200, output_tokens=1, cache_read_input_tokens=150),
        answer("done", input_tokens=300, output_tokens=1),
    )
    await within(Agent("a", model=model, tools=[look]).run("go"))
    chats = [attributes(span) for span in telemetry.spans if span.name == "chat scripted"]
    assert [chat.get(semconv.CACHED_SHARE) for chat in chats] == [0.0, 0.75, None]
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.prompt_cache.share"]
    assert (point.count, point.value) == (2, 0.75)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-6-sol"),
        ("anthropic", "claude-sonnet-5-5"),
        ("gcp.gemini", "gemini-3.8-flash"),
        ("deepseek", "deepseek-chat"),
    ],
)
async def test_published_prices(provider: str, model: str) -> None:
    """Vendors' models have a published price, lower for cached tokens and higher for more tokens."""
    prices = PublishedPrices()
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000)
    cached = Usage(input_tokens=1_000_000, output_tokens=1_000, cache_read_input_tokens=900_000)
    more = Usage(input_tokens=1_000_000, output_tokens=100_000)
    plain = prices(provider, model, usage)
    assert plain is not None
    assert 0 < (prices(provider, model, cached) or 0) < plain < (prices(provider, model, more) or 0)


@pytest.mark.parametrize(
    ("provider", "model", "usage"),
    [
        ("openai", "no-such-model", Usage(input_tokens=1, output_tokens=1)),
        ("no-such-vendor", "gpt-6-sol", Usage(input_tokens=1, output_tokens=1)),
        ("openai", "gpt-6-sol", Usage(output_tokens=1)),
        ("openai", "gpt-6-sol", Usage()),
        ("openai", "gpt-6-sol", Usage(input_tokens=1, output_tokens=1, cache_read_input_tokens=2)),
    ],
)
async def test_what_has_no_published_price(provider: str, model: str, usage: Usage) -> None:
    """Unknown models, vendors and tokens, and contradictory tokens, have no published price."""
    assert PublishedPrices()(provider, model, usage) is None


@pytest.fixture
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `genai_prices` look as if it were not installed."""
    prices_module._calculator.cache_clear()
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    yield
    prices_module._calculator.cache_clear()


@pytest.mark.usefixtures("without_the_package")
async def test_without_the_package_no_price_is_known() -> None:
    """Published prices are unknown without the package, and nothing fails."""
    assert PublishedPrices()("openai", "gpt-6-sol", Usage(input_tokens=1, output_tokens=1)) is None


async def test_a_table_goes_before_published_prices() -> None:
    """A price table looks for provider and model, then for the model, and then asks `otherwise`."""
    table = PriceTable(
        {"openai:gpt-6-sol": Price(input=1.0, output=0.0), "gpt-6-sol": Price(input=2.0, output=0.0)},
        otherwise=lambda provider_name, model, usage, asked: 99.0,
    )
    usage = Usage(input_tokens=1_000_000, output_tokens=0)
    assert [table(provider, "gpt-6-sol", usage) for provider in ("openai", "azure.ai.openai")] == [1.0, 2.0]
    assert table("openai", "gpt-4", usage) == 99.0
    written = Usage(input_tokens=1_000_000, output_tokens=0, cache_write_input_tokens=500_000)
    assert Price(input=1.0, output=0.0, cache_write=3.0).of(written) == 2.0
    with pytest.raises(ConfigError, match="is not a Price"):
        PriceTable({"gpt-6-sol": 1.0})  # type: ignore[dict-item]  # the mistake under test
