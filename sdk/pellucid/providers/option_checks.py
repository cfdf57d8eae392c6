"""Checks of the options of a provider of a hub's tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pellucid.errors import ConfigError
from pellucid.providers.provider import OnInvalid, ProviderFacts
from pellucid.text import excerpt


def check_options(provider: Any) -> None:
    """Check the options of a `DiscoveryProvider`, other than its patience.

    Raises:
        ConfigError: one is not valid.
    """
    if not provider.id or not isinstance(provider.id, str):
        raise ConfigError(
            f"DiscoveryProvider(id={provider.id!r}): give the hub a name; traces, metrics and alerts carry it"
        )
    names = ("ttl", "stale_if_error", "stale_while_revalidate", "timeout")
    owner = f"DiscoveryProvider {provider.id!r}"
    check_not_negative(owner, {name: getattr(provider, name) for name in names})
    if not (isinstance(provider.max_entries, int) and provider.max_entries >= 1):
        raise ConfigError(f"{owner}: max_entries={provider.max_entries!r} must be a whole number from 1")
    if provider.on_invalid not in get_args(OnInvalid):
        raise ConfigError(f"{owner}: unknown on_invalid={provider.on_invalid!r}; use 'fail' or 'quarantine'")
    if not callable(getattr(provider.hub, "fetch_catalog", None)):
        shown = f"{owner}: hub={excerpt(repr(provider.hub))} is"
        if hasattr(provider.hub, "list_tools"):
            raise ConfigError(f"{shown} not a hub but a tool provider; give it as Agent(providers=[...])")
        raise ConfigError(f"{shown} not a hub; it needs fetch_catalog(ctx), which returns the tools")
    ProviderFacts.of(provider)


def check_not_negative(owner: str, options: Mapping[str, Any]) -> None:
    """Reject what is not a number of seconds, or negative.

    Raises:
        ConfigError: an option is.
    """
    for name, value in options.items():
        if not (value is None or (isinstance(value, int | float) and value >= 0)):
            raise ConfigError(f"{owner}: {name}={value!r} must not be negative, but a number of seconds")
