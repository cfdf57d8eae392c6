"""Providers that are opened and closed with their agent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from pellucid.providers.provider import close


async def open_all(providers: Iterable[Any]) -> AsyncExitStack:
    """Enter the providers that are async context managers, also within wrappers; the stack leaves or closes all.

    Raises:
        DiscoveryError: a provider cannot be opened; those before it are closed.
    """
    async with AsyncExitStack() as stack:
        for provider in providers:
            await _open(stack, provider)
        return stack.pop_all()


async def _open(stack: AsyncExitStack, provider: Any) -> None:
    if hasattr(provider, "__aenter__"):
        await stack.enter_async_context(provider)
        return
    wrapped = getattr(provider, "providers", None) or getattr(provider, "inner", None)
    if wrapped is None:
        stack.push_async_callback(close, provider)
        return
    for inner in wrapped if isinstance(wrapped, tuple) else (wrapped,):
        await _open(stack, inner)
