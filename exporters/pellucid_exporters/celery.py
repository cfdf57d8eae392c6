"""Traces across the queues of Celery, and telemetry of the processes of its workers.

```python
app = Celery("orders", broker="redis://localhost")
connect_celery(lambda: configure("orders"))
```
"""

from __future__ import annotations

import sys
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

from celery import signals
from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid_exporters.telemetry import Telemetry

_INSTRUMENTATION: Final = "opentelemetry.instrumentation.celery"


def connect_celery(start: Callable[[], Telemetry] | None = None) -> None:
    """Continue the trace of a caller in its tasks, and send the telemetry of each process that runs tasks.

    Call it once, in the module of the Celery application, which callers and workers import. Headers of a task carry
    `traceparent`, `tracestate` and baggage; tasks that a task starts, chains and retries belong to the same trace.
    There are no spans of tasks: OpenTelemetry's instrumentation for Celery makes these, and then it carries the trace.

    Args:
        start: Configures telemetry, such as `lambda: configure("orders")`. Called in each process of a prefork pool
            after its fork, and in that of a solo pool; a pool process sends the rest when it ends, which it does
            without the exit handlers of Python. The other pools run tasks in the worker itself: call
            `configure()` in the module.
    """
    signals.before_task_publish.connect(_inject, weak=False)
    signals.task_prerun.connect(_continue, weak=False)
    signals.task_postrun.connect(_leave, weak=False)
    if start is not None:
        process = _Process(start)
        signals.worker_process_init.connect(process.start, weak=False)
        signals.worker_process_shutdown.connect(process.stop, weak=False)


class _Process:
    """Telemetry of a process that runs tasks."""

    def __init__(self, start: Callable[[], Telemetry]) -> None:
        self._start = start
        self._telemetry: Telemetry | None = None

    def start(self, **_: Any) -> None:
        self._telemetry = self._start()

    def stop(self, **_: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.shutdown()


_tokens: Final[dict[str, Token[Context]]] = {}
"""Contexts of the tasks that run, by their id."""


def _inject(headers: dict[str, Any], **_: Any) -> None:
    if not _is_instrumented():
        propagate.inject(headers)


def _continue(task_id: str, task: Any, **_: Any) -> None:
    if not (task.request.is_eager or _is_instrumented()):  # an eager task runs in the context of its caller
        _tokens[task_id] = attach(propagate.extract(task.request.headers or {}))


def _leave(task_id: str, **_: Any) -> None:
    token = _tokens.pop(task_id, None)
    if token is not None:
        detach(token)


def _is_instrumented() -> bool:
    """Return whether OpenTelemetry's instrumentation carries the context."""
    module = sys.modules.get(_INSTRUMENTATION)
    return module is not None and module.CeleryInstrumentor().is_instrumented_by_opentelemetry
