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
from pellucid.models.names import ADAPTERS, adapter
from pellucid.models.prices import Prices, PublishedPrices
from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid.models.anthropic import AnthropicModel as AnthropicModel
    from pellucid.models.fallback import FallbackModel
    from pellucid.models.gemini import GeminiModel as GeminiModel
    from pellucid.models.openai import OpenAIModel as OpenAIModel
    from pellucid.models.price_table import Price, PriceTable

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
    "candidates": ("alternatives", "candidates"),
    "closable": ("base", "closable"),
    "falls_back": ("alternatives", "falls_back"),
    "load_prices": ("prices", "load_prices"),
    "require_model": ("base", "require_model"),
    "resolve": ("names", "resolve"),
    "told": ("alternatives", "last_of"),
}
"""Helpers that this module used to export, and their modules and names."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        lazy={name: partial(adapter, name) for name in ADAPTERS}
        | load_within(__name__, {"fallback": ["FallbackModel"], "price_table": ["Price", "PriceTable"]}),
        deprecated={name: (f"{__name__}.{home}", new) for name, (home, new) in _MOVED.items()},
    )
    __dir__ = module_dir(__name__)
