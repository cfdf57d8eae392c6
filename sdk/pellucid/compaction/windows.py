"""The windows of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pellucid.compaction.options import Context
from pellucid.errors import ConfigError
from pellucid.models import Model
from pellucid.models.facts import ModelFacts
from pellucid.models.prices import PUBLISHERS


def window_of(agent: str, context: Context, models: Iterable[ModelFacts]) -> int:
    """Return the tokens that a request may have at most: the window of the model, or the smallest of several.

    Raises:
        ConfigError: the window of a model is unknown.
    """
    return min(_window(agent, context, model) for model in models)


def check_window(agent: str, context: Context, model: Model, settings: Mapping[str, Any]) -> None:
    """Check that the window of a model is known, and has room for a request.

    Raises:
        ConfigError: it is unknown, or `max_tokens` leaves no room.
    """
    window, answer = window_of(agent, context, ModelFacts.of_all(model)), settings.get("max_tokens", 0)
    if answer >= window:
        raise ConfigError(
            f"{agent}: the answer of max_tokens={answer:,} leaves no room in the window of {window:,} tokens; lower "
            "settings['max_tokens'], or correct Context(window=...)"
        )


def _window(agent: str, context: Context, model: ModelFacts) -> int:
    own = context.window
    if isinstance(own, int):
        return own
    name = f"{model.provider_name}:{model.name}"
    window = own.get(name, own.get(model.name)) if own is not None else None
    if window is None:
        window = _published(model)
    if window is None:
        raise ConfigError(
            f"{agent}: the window of model {model.name!r} of {model.provider_name} is unknown; give its tokens, such "
            f"as Context(window={{{name!r}: 128_000}})"
        )
    return window


def _published(model: ModelFacts) -> int | None:
    """Return the published window of a model, from the package with the prices; None if it is not known."""
    publisher = PUBLISHERS.get(model.provider_name)
    if publisher is None:
        return None
    try:
        import genai_prices

        found = genai_prices.calc_price(genai_prices.Usage(), model.name, provider_id=publisher)
    except (ImportError, LookupError, ValueError):
        return None
    return found.model.context_window
