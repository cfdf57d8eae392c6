"""Warning about sync calls within a running event loop; loaded at the first one."""

from __future__ import annotations

import sys
import warnings
from typing import Final

_MESSAGE: Final = (
    "a sync call of Pellucid within a running event loop blocks the loop until the run has ended; "
    "await the async one instead, such as `await agent.run(...)`. This is said once."
)

_said: list[bool] = []


def warn_once() -> None:
    """Warn that the caller's event loop is blocked, once in a process, and not in a notebook, whose loop is its own."""
    if _said or _is_notebook():
        return
    _said.append(True)
    warnings.warn(_MESSAGE, RuntimeWarning, stacklevel=4)  # at the caller of `run_sync`


def _is_notebook() -> bool:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and hasattr(get_ipython(), "kernel")
