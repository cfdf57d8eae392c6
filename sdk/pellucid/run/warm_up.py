"""Warm-up: connect and fetch before the first run, so that it does not wait."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pellucid.concurrency.tasks import spawn
from pellucid.context import UNLIMITED, DiscoveryContext, Identity
from pellucid.failures import describe
from pellucid.providers.listing import list_all
from pellucid.run.state import Configuration
from pellucid.telemetry import Scope, enter_scope, leave_scope


async def warm_up(configuration: Configuration, identity: Identity | None, *, skip_failed: bool = False) -> None:
    """List the tools of every provider once, each in its boundary as in a run, and let the models connect.

    Args:
        configuration: Configuration of the agent.
        identity: Identity for the providers.
        skip_failed: Whether to ask the other providers also if one has failed, instead of raising.

    Raises:
        DiscoveryError: a provider failed.
    """
    setup = configuration.setup
    scope = Scope(agent=setup.name, identity=identity, pipeline=configuration.pipeline, listeners=(setup.listeners,))
    scope_token = enter_scope(scope)
    try:
        ctx = DiscoveryContext(identity=identity, patience=UNLIMITED)
        await list_all(setup.listers, scope, ctx, within=setup.limits.discovery_timeout, skip_failed=skip_failed)
        for facts in setup.models:
            warm_model = getattr(facts.model, "warm_up", None)
            if warm_model is not None:
                await warm_model()
    finally:
        leave_scope(scope_token)


class BackgroundWarmUp:
    """Warm-up in the background of one event loop. Failures of providers are in their telemetry and states.

    Args:
        current: Returns the current configuration of the agent.
    """

    def __init__(self, current: Callable[[], Configuration]) -> None:
        self._current = current
        self._has_started = False
        self._is_running = False

    def start(self, *, again: bool = False) -> None:
        """Start, unless it runs; `again` also if it has ended."""
        if self._is_running or (self._has_started and not again):
            return
        self._has_started = self._is_running = True
        spawn(self._run)

    async def _run(self) -> None:
        configuration = self._current()
        try:
            await warm_up(configuration, None, skip_failed=True)
        except Exception as error:  # noqa: BLE001  (the application's: of a model of its own)
            name = configuration.setup.name
            logging.getLogger("pellucid").warning("warm-up of agent %r failed: %s", name, describe(error))
        finally:
            self._is_running = False
