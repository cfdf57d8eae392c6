"""Boundaries that one function enters and another one ends."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TypeVarTuple

from pellucid.telemetry.boundary import Boundary

_Args = TypeVarTuple("_Args")


class Entered:
    """Boundary that is current in a context of its own, so that it may be ended by other code than entered it.

    Attributes:
        boundary: The boundary.
    """

    def __init__(self, b: Boundary) -> None:
        self.boundary = b
        self._context = contextvars.copy_context()
        self._context.run(b.__enter__)

    def run(self, function: Callable[[*_Args], object], *args: *_Args) -> None:
        """Call a function within the boundary."""
        self._context.run(function, *args)

    def end(self, error: BaseException | None = None) -> None:
        """End the boundary."""
        self._context.run(self.boundary.__exit__, type(error) if error is not None else None, error, None)

    def abandon(self) -> None:
        """End the boundary as cancelled."""
        self._context.run(self.boundary.abandon)
