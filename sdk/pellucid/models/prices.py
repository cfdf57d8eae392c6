"""Prices of model calls: published ones, and your own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, Protocol

from pellucid.errors import ConfigError
from pellucid.messages import Usage

MILLION: Final = 1_000_000

_PUBLISHERS: Final[Mapping[str, str]] = {
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
        publisher = _PUBLISHERS.get(provider_name)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a model, in US dollars per million tokens.

    Attributes:
        input: Price of input tokens that were not read from the vendor's cache.
        output: Price of output tokens.
        cache_read: Price of tokens that were read from the cache; defaults to `input`.
        cache_write: Price of tokens that were written to the cache; defaults to `input`.

    Raises:
        ConfigError: a price is negative or not a number.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            dollars = getattr(self, field.name)
            if dollars is not None and not 0 <= dollars < math.inf:
                raise ConfigError(f"Price({field.name}={dollars!r}): must be US dollars per million tokens, 0 or more")

    def of(self, usage: Usage) -> float | None:
        """Return the cost in US dollars, or `None` if the token counts are unknown or inconsistent."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        read, written = usage.cache_read_input_tokens or 0, usage.cache_write_input_tokens or 0
        uncached = usage.input_tokens - read - written
        if min(uncached, read, written, usage.output_tokens) < 0:
            return None
        dollars = (
            uncached * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return dollars / MILLION


class PriceTable:
    """A table of your own prices, for contracts, new models and self-hosted models.

    ```python
    prices = PriceTable({"openai:gpt-6-sol": Price(input=1.0, output=8.0), "my-model": Price(input=0.0, output=0.0)})
    Agent("support", model="openai:gpt-6-sol", prices=prices)
    ```

    Args:
        table: Prices by `provider:model` or by the model's name; the former has precedence. The name is that of the
            response or that of the request; the former has precedence.
        otherwise: Prices of models that are not in the table; defaults to `PublishedPrices`.

    Raises:
        ConfigError: a value is not a `Price`.
    """

    def __init__(self, table: Mapping[str, Price], *, otherwise: Prices | None = None) -> None:
        for name, price in table.items():
            if not isinstance(price, Price):
                raise ConfigError(f"PriceTable: {price!r} for {name!r} is not a Price(input=..., output=...)")
        self._table = dict(table)
        self._otherwise = otherwise if otherwise is not None else PublishedPrices()

    def load(self, provider_name: str, model: str) -> None:
        """Load the prices in `otherwise` if the model is not in the table."""
        if f"{provider_name}:{model}" not in self._table and model not in self._table:
            load_prices(self._otherwise, [(provider_name, model)])

    def __call__(self, provider_name: str, model: str, usage: Usage, requested: str | None = None, /) -> float | None:
        """Return the cost in US dollars, or `None` if it is not known."""
        requested = requested if requested is not None else model
        for name in (f"{provider_name}:{model}", model, f"{provider_name}:{requested}", requested):
            if (price := self._table.get(name)) is not None:
                return price.of(usage)
        return self._otherwise(provider_name, model, usage, requested)
