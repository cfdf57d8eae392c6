"""Probes of a worker: `/healthz` and `/readyz` on the port of its metrics."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import anyio
import anyio.from_thread
from anyio.lowlevel import EventLoopToken, current_token

from pellucid.concurrency.tasks import call_soon
from pellucid.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid.durable import DurableRuns

PATIENCE: Final = 2.0
"""Seconds in which the event loop and the store must answer; probes do not wait for longer."""


def probes_of(runs: DurableRuns) -> dict[str, Callable[[], str | None]]:
    """Return the probes of a worker by path; call it in the worker's event loop."""
    token = current_token()

    async def check() -> str | None:
        if runs.is_draining:
            return "draining"
        try:
            with anyio.fail_after(PATIENCE):
                await runs.check()
        except (StoreError, TimeoutError):
            return "the store does not answer"
        return None

    def ready() -> str | None:
        return _stuck(token) or anyio.from_thread.run(check, token=token)

    return {"/healthz": lambda: _stuck(token), "/readyz": ready}


def _stuck(token: EventLoopToken) -> str | None:
    """Return what is wrong with an event loop that does not run what it is given."""
    has_run = threading.Event()
    call_soon(token, has_run.set)
    return None if has_run.wait(PATIENCE) else "the event loop does not answer"
