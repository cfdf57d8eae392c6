"""Shutdown of telemetry when its process ends, also where Python's exit handlers do not run.

A process that `multiprocessing` made ends by `os._exit`, after the finalizers of `multiprocessing.util`. It starts
without any: they are cleared before the functions of `register_after_fork` are called, with each start method.
"""

from __future__ import annotations

import atexit
import weakref
from multiprocessing import parent_process
from multiprocessing.util import Finalize, register_after_fork
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_LAST: Final = -1000
"""Priority of the finalizer: after those of queues and pools, which are above -100."""


class Ending(Protocol):
    """Object to shut down."""

    @property
    def shutdown(self) -> Callable[[], None]:
        """Send what waits and close everything. Idempotent."""


def shut_down_at_exit(ending: Ending) -> None:
    """Call `shutdown` when this process ends, and in each process that inherits the object when that one ends."""
    atexit.register(ending.shutdown)
    register_after_fork(ending, _finalize)
    if parent_process() is not None:
        _finalize(ending)


def _finalize(ending: Ending) -> None:
    Finalize(ending, _shut_down, (weakref.ref(ending),), exitpriority=_LAST)


def _shut_down(reference: weakref.ref[Ending]) -> None:
    if (ending := reference()) is not None:
        ending.shutdown()
