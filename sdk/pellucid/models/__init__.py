"""Models: the protocol, its requests and responses, and adapters that are loaded on first use."""

from functools import partial
from typing import TYPE_CHECKING

from pellucid.models.base import (
    Model,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    OutputSchema,
    Settings,
    StreamItem,
)
from pellucid.models.fallback import FallbackModel
from pellucid.models.names import ADAPTERS, adapter
from pellucid.models.prices import Price, Prices, PriceTable, PublishedPrices
from pellucid.module_names import module_getattr

if TYPE_CHECKING:
    from pellucid.models.anthropic import AnthropicModel as AnthropicModel
    from pellucid.models.gemini import GeminiModel as GeminiModel
    from pellucid.models.openai import OpenAIModel as OpenAIModel

__all__ = [
    "AnthropicModel",
    "FallbackModel",
    "GeminiModel",
    "Model",
    "ModelDelta",
    "ModelRequest",
    "ModelResponse",
    "OpenAIModel",
    "OutputSchema",
    "Price",
    "PriceTable",
    "Prices",
    "PublishedPrices",
    "Settings",
    "StreamItem",
]

_MOVED = {
    "candidates": "fallback",
    "closable": "base",
    "falls_back": "fallback",
    "load_prices": "prices",
    "require_model": "base",
    "resolve": "names",
    "told": "fallback",
}
"""Helpers that this module used to export, and the modules that define them."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        lazy={name: partial(adapter, name) for name in ADAPTERS},
        deprecated={name: (f"{__name__}.{home}", name) for name, home in _MOVED.items()},
    )
