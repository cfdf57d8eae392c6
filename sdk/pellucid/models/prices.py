"""What a model call costs: published prices, and your own."""

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
"""Values of `gen_ai.provider.name`, and the ids of the `genai-prices` package."""


class Prices(Protocol):
    """Something that knows what model calls cost; any function of this shape will do."""

    def __call__(self, provider_name: str, model: str, usage: Usage, asked: str, /) -> float | None:
        """Return US dollars, or `None` if they are not known.

        Args:
            provider_name: Value of `gen_ai.provider.name`.
            model: The model that answered, by the name that it gave itself: often that of a version.
            usage: What the call used.
            asked: The model that was asked for: what `model=` said, such as an alias or a deployment.
        """
        ...


def load_prices(prices: Prices, models: Iterable[tuple[str, str]]) -> None:
    """Let prices load what they need for models, given by provider and name, if they have a method `load` for it."""
    load = getattr(prices, "load", None)
    if load is not None:
        for provider_name, model in models:
            load(provider_name, model)


class PublishedPrices:
    """The vendors' published prices of today, from the `genai-prices` package; no network is used.

    `None` for a model that it does not know, for unknown tokens, and without the package (`pip install
    pellucid[prices]`; each vendor's extra brings it).
    """

    def __call__(self, provider_name: str, model: str, usage: Usage, asked: str | None = None, /) -> float | None:
        """Return US dollars, or `None` if they are not known."""
        publisher = _PUBLISHERS.get(provider_name)
        if publisher is None or usage.input_tokens is None or usage.output_tokens is None:
            return None
        calculate = _calculator()
        if calculate is None:
            return None
        dollars = calculate(publisher, model, usage)
        if dollars is None and asked is not None and asked != model:
            dollars = calculate(publisher, asked, usage)
        return dollars

    def load(self, provider_name: str, model: str) -> None:
        """Load the package if it has prices of this vendor; that takes 0.1 s, which an event loop should not."""
        self(provider_name, model, Usage(input_tokens=0, output_tokens=0))

    def __repr__(self) -> str:
        return "PublishedPrices()"


@cache
def _calculator() -> Callable[[str, str, Usage], float | None] | None:
    """Return the package's calculation; loading it takes 0.1 s, which agents without prices need not pay."""
    try:
        import genai_prices
    except ImportError:
        return None

    def calculate(publisher: str, model: str, usage: Usage) -> float | None:
        known: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_input_tokens,
            "cache_write_tokens": usage.cache_write_input_tokens,
        }
        try:
            counted = genai_prices.Usage(**{name: count for name, count in known.items() if count is not None})
            return float(genai_prices.calc_price(counted, model, provider_id=publisher).total_price)
        except (LookupError, ValueError):  # no such model, or tokens that contradict each other
            return None

    return calculate


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a model costs, in US dollars for a million tokens.

    Attributes:
        input: Tokens that did not come from the vendor's cache.
        cache_read: Tokens that did; as `input` if not given.
        cache_write: Tokens that were written to the cache; as `input` if not given.

    Raises:
        ConfigError: one of them is negative, or no number.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            dollars = getattr(self, each.name)
            if dollars is not None and not 0 <= dollars < math.inf:
                raise ConfigError(f"Price({each.name}={dollars!r}): must be US dollars for a million tokens, 0 or more")

    def of(self, usage: Usage) -> float | None:
        """Return US dollars, or `None` if the number of tokens is not known or cannot be."""
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
    """Prices of your own, for contracts, new models and models of your own.

    ```python
    prices = PriceTable({"openai:gpt-6-sol": Price(input=1.0, output=8.0), "my-model": Price(input=0.0, output=0.0)})
    Agent("support", model="openai:gpt-6-sol", prices=prices)
    ```

    Args:
        table: By the model's name, or by `provider:model`, which goes before it. It may be the name of the model that
            answered, which goes first, or the one that was asked for.
        otherwise: Asked about models that are not in the table.

    Raises:
        ConfigError: a value is not a `Price`.
    """

    def __init__(self, table: Mapping[str, Price], *, otherwise: Prices | None = None) -> None:
        for name, price in table.items():
            if not isinstance(price, Price):
                raise ConfigError(f"PriceTable: {price!r} for {name!r} is no Price(input=..., output=...)")
        self._table = dict(table)
        self._otherwise = otherwise if otherwise is not None else PublishedPrices()

    def load(self, provider_name: str, model: str) -> None:
        """Load what is asked about models that are not in the table, if this is one."""
        if f"{provider_name}:{model}" not in self._table and model not in self._table:
            load_prices(self._otherwise, [(provider_name, model)])

    def __call__(self, provider_name: str, model: str, usage: Usage, asked: str | None = None, /) -> float | None:
        """Return US dollars, or `None` if they are not known."""
        asked = asked if asked is not None else model
        for name in (f"{provider_name}:{model}", model, f"{provider_name}:{asked}", asked):
            if (price := self._table.get(name)) is not None:
                return price.of(usage)
        return self._otherwise(provider_name, model, usage, asked)
