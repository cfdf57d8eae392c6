"""Models: the protocol, what goes through it, and adapters that are loaded when they are asked for."""

from typing import Any

from pellucid.models.base import (
    Model,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    OutputSchema,
    Settings,
    StreamItem,
    candidates,
    falls_back,
)
from pellucid.models.fallback import FallbackModel, told
from pellucid.models.prices import Price, Prices, PriceTable, PublishedPrices
from pellucid.models.resolve import ADAPTERS, adapter, resolve

__all__ = [
    "FallbackModel",
    "Model",
    "ModelDelta",
    "ModelRequest",
    "ModelResponse",
    "OutputSchema",
    "Price",
    "PriceTable",
    "Prices",
    "PublishedPrices",
    "Settings",
    "StreamItem",
    "candidates",
    "falls_back",
    "resolve",
    "told",
]


def __getattr__(name: str) -> Any:
    if name in ADAPTERS:
        return adapter(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
