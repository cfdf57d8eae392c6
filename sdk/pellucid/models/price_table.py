"""Your own prices of model calls, for contracts, new models and self-hosted models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from pellucid.errors import ConfigError
from pellucid.messages import Usage
from pellucid.models.prices import Prices, PublishedPrices, load_prices

MILLION: Final = 1_000_000


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
