"""Traces across the queues of Taskiq.

```python
broker = NatsBroker("nats://localhost").with_middlewares(TraceMiddleware())
```
"""

from __future__ import annotations

from contextvars import Token
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import get_current_span
from taskiq import TaskiqMessage, TaskiqMiddleware, TaskiqResult


class TraceMiddleware(TaskiqMiddleware):
    """Continues the trace of a caller in its tasks; labels of a task carry `traceparent`, `tracestate` and baggage.

    There are no spans of tasks: Taskiq's own `OpenTelemetryMiddleware` makes these. Beside it, this one does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[str, Token[Context]] = {}

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        """Add the context of the caller."""
        propagate.inject(message.labels)
        return message

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Enter the context of the caller, unless a span of the task has been started there."""
        current = get_current_span().get_span_context()
        if not current.is_valid or current.is_remote:
            self._tokens[message.task_id] = attach(propagate.extract(message.labels))
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Leave it, also after a failure."""
        token = self._tokens.pop(message.task_id, None)
        if token is not None:
            detach(token)
