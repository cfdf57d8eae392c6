"""Models: the protocol, what goes through it, and adapters that are loaded when they are asked for."""

from typing import TYPE_CHECKING, Any

from pellucid.models.base import (
    Model,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    OutputSchema,
    Settings,
    StreamItem,
    closable,
    require_model,
)
from pellucid.models.fallback import FallbackModel, candidates, falls_back, told
from pellucid.models.names import ADAPTERS, adapter, resolve
from pellucid.models.prices import Price, Prices, PriceTable, PublishedPrices, load_prices

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
    "candidates",
    "closable",
    "falls_back",
    "load_prices",
    "require_model",
    "resolve",
    "told",
]


def __getattr__(name: str) -> Any:
    if name in ADAPTERS:
        return adapter(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
