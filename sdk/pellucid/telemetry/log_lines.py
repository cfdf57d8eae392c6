"""One log line per ended boundary, through the application's own logging setup.

If the application configured structlog, the lines go there. Otherwise they go to the standard logger `pellucid`, which
is silent until the application sets a handler and a level. This module configures nothing globally.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from opentelemetry.context import Context, attach, detach

from pellucid.telemetry.pipeline import LogSink

LOGGER: Final = logging.getLogger("pellucid")
LOGGER.addHandler(logging.NullHandler())

LEVELS: Final[Mapping[str, int]] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Guarded: TypeAlias = Callable[..., object]
"""`Scope.guarded`."""


class LogLines:
    """Log lines of one run.

    Attributes:
        is_kept: Whether lines of all levels reach a sink or a logger of the application.
    """

    def __init__(self, sinks: Sequence[LogSink]) -> None:
        self._sinks = sinks
        # An application that did not import structlog did not configure it either, and an import costs 0.1 s.
        structlog: Any = sys.modules.get("structlog")
        configured = structlog is not None and structlog.is_configured()
        self._logger: Any = structlog.get_logger("pellucid").bind() if configured else None

        self.is_kept = bool(sinks) or configured

    def is_enabled(self, level: str) -> bool:
        """Return whether a line of this level would reach a sink or handler."""
        return self.is_kept or _is_handled(level)

    def write(
        self, level: str, event: str, fields: Mapping[str, Any], time_ns: int, guarded: Guarded, context: Context
    ) -> None:
        """Write one line; the failure of one sink does not affect the others.

        Instrumentation of logging reads the current span, which `context` has.
        """
        if self._logger is not None or _is_handled(level):
            logger = _standard() if self._logger is None else self._logger
            token = attach(context)
            try:
                guarded("log", logger.log, LEVELS[level], event, **fields)
            finally:
                detach(token)
        self.sink(level, event, fields, time_ns, guarded)

    def sink(self, level: str, event: str, fields: Mapping[str, Any], time_ns: int, guarded: Guarded) -> None:
        """Write one line to the sinks only."""
        for sink in self._sinks:
            guarded("log", sink, {"event": event, "level": level, "timestamp": time_ns, **fields})


def _is_handled(level: str) -> bool:
    """Return whether the standard logger would pass a line to a handler other than `NullHandler`."""
    if not LOGGER.isEnabledFor(LEVELS[level]):
        return False
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@cache
def _standard() -> Any:
    """Return a structlog logger that wraps the standard one, for applications that did not configure structlog."""
    import structlog

    return structlog.wrap_logger(LOGGER, processors=[_as_record], wrapper_class=structlog.stdlib.BoundLogger)


def _as_record(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Add the fields to the message, for formatters that show only the message, and keep them as attributes."""
    event = fields.pop("event")
    text = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
    return (f"{event} {text}",), {"extra": dict(fields)}


def _shown(value: object) -> str:
    """Return a value as one word on one line: errors and names come from hubs and models."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(value)
