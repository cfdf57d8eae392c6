"""One structlog line per ended boundary, through whatever the application has set up, and never louder than that.

An application that configured structlog gets the lines there. In any other they go to the standard logger `pellucid`,
which is silent until the application gives it a handler and a level. Nothing here configures anything globally.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from pellucid.telemetry.pipeline import LogSink

LOGGER: Final = logging.getLogger("pellucid")
LOGGER.addHandler(logging.NullHandler())

LEVELS: Final[Mapping[str, int]] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_stdlib = structlog.wrap_logger(
    LOGGER, processors=[structlog.stdlib.render_to_log_kwargs], wrapper_class=structlog.stdlib.BoundLogger
)


class LogLines:
    """Writes the lines of one run."""

    __slots__ = ("_logger", "_sinks")

    def __init__(self, sinks: Sequence[LogSink]) -> None:
        self._sinks = sinks
        self._logger: Any = structlog.get_logger("pellucid").bind() if structlog.is_configured() else None

    def wanted(self, level: str) -> bool:
        """Whether a line of this level would reach anybody."""
        return bool(self._sinks) or self._logger is not None or LOGGER.isEnabledFor(LEVELS[level])

    def write(
        self, level: str, event: str, fields: Mapping[str, Any], time_ns: int, fault: Callable[[str, Exception], None]
    ) -> None:
        """Write one line; a sink that fails does not keep it from the others."""
        try:
            if self._logger is not None:
                self._logger.log(LEVELS[level], event, **fields)
            elif LOGGER.isEnabledFor(LEVELS[level]):
                _stdlib.log(LEVELS[level], event, **fields)
        except Exception as error:  # noqa: BLE001  (processors and handlers are the application's)
            fault("log", error)
        for sink in self._sinks:
            try:
                sink({"event": event, "level": level, "timestamp": time_ns, **fields})
            except Exception as error:  # noqa: BLE001  (sinks are the application's)
                fault("log", error)
