"""Prices of model calls: their protocol, and the published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, Protocol

from pellucid.messages import Usage

PUBLISHERS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "aws.bedrock": "aws",
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex_ai": "google",
    "groq": "groq",
    "mistral_ai": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "perplexity": "perplexity",
    "together": "together",
    "x_ai": "x-ai",
}
"""Values of `gen_ai.provider.name`, and the provider ids of the `genai-prices` package."""


class Prices(Protocol):
    """A source of prices for model calls; any function with this signature."""

    def __call__(self, provider_name: str, model: str, usage: Usage, requested: str, /) -> float | None:
        """Return the cost in US dollars, or `None` if it is not known.

        Args:
            provider_name: Value of `gen_ai.provider.name`.
            model: The name in the response, often that of a version.
            usage: The tokens that the call used.
            requested: Name in the request: that of `model=`, such as an alias or a deployment.
        """
        ...


def load_prices(prices: Prices, models: Iterable[tuple[str, str]]) -> None:
    """Call `prices.load`, if it exists, for each pair of provider and model name."""
    load = getattr(prices, "load", None)
    if load is not None:
        for provider_name, model in models:
            load(provider_name, model)


class PublishedPrices:
    """The vendors' currently published prices, from the `genai-prices` package, without network access.

    A cost is `None` for unknown models, for unknown token counts, and without the package (`pip install
    pellucid[prices]`; the extra of each vendor includes it).
    """

    def __call__(self, provider_name: str, model: str, usage: Usage, requested: str | None = None, /) -> float | None:
        """Return the cost in US dollars, or `None` if it is not known."""
        publisher = PUBLISHERS.get(provider_name)
        if publisher is None or usage.input_tokens is None or usage.output_tokens is None:
            return None
        calculate = _calculator()
        if calculate is None:
            return None
        dollars = calculate(publisher, model, usage)
        if dollars is None and requested is not None and requested != model:
            dollars = calculate(publisher, requested, usage)
        return dollars

    def load(self, provider_name: str, model: str) -> None:
        """Load the package if it has prices of this vendor. That takes 0.1 s, which would block an event loop."""
        self(provider_name, model, Usage(input_tokens=0, output_tokens=0))

    def __repr__(self) -> str:
        return "PublishedPrices()"


@cache
def _calculator() -> Callable[[str, str, Usage], float | None] | None:
    """Return the package's calculation. Loaded on first use, because the import takes 0.1 s."""
    try:
        import genai_prices
    except ImportError:
        return None

    def calculate(publisher: str, model: str, usage: Usage) -> float | None:
        counts: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_input_tokens,
            "cache_write_tokens": usage.cache_write_input_tokens,
        }
        try:
            priced_usage = genai_prices.Usage(**{name: count for name, count in counts.items() if count is not None})
            return float(genai_prices.calc_price(priced_usage, model, provider_id=publisher).total_price)
        except (LookupError, ValueError):  # no such model, or tokens that contradict each other
            return None

    return calculate
