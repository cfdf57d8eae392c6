"""Tasks of Celery that run an agent, start each other and retry; as a program, who sends them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from celery import Celery, chain
from opentelemetry import baggage, context, trace

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters import configure
from pellucid_exporters.celery import connect_celery

if TYPE_CHECKING:
    from pellucid_exporters import Telemetry

app = Celery("orders", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(worker_max_tasks_per_child=3, worker_concurrency=2)


def start() -> Telemetry:
    """Configure telemetry."""
    return configure("orders")


if "INSTRUMENTED" in os.environ:  # before the fork, as applications do that call it at import
    from opentelemetry.instrumentation.celery import CeleryInstrumentor

    inherited = start()
    instrumentor = CeleryInstrumentor()  # type: ignore[no-untyped-call]  # it has no types
    instrumentor.instrument(tracer_provider=inherited.tracer_provider)
    connect_celery(lambda: inherited)
else:
    connect_celery(start)
agent = Agent("orders", model=FunctionModel(lambda _: "done"))
agent.run_sync("before the fork")


@app.task(name="ask")
def ask(before: str, question: str) -> str:
    """Run the agent, and return what the task before it returned, and the tenant of the caller."""
    agent.run_sync(question)
    return f"{before} {question}:{baggage.get_baggage('tenant')}"


@app.task(name="start_other")
def start_other(before: str) -> str:
    """Start a task, and do not wait for it."""
    ask.delay("", f"started by {before}")
    return before


@app.task(name="retry", bind=True, max_retries=1)
def retry(task: Any, before: str) -> str:
    """Fail once."""
    if task.request.retries == 0:
        raise task.retry(countdown=0)
    return str(ask(before, "retried"))


if __name__ == "__main__":
    telemetry = inherited if "INSTRUMENTED" in os.environ else start()
    for number in range(int(sys.argv[1])):
        token = context.attach(baggage.set_baggage("tenant", f"t{number}"))
        with trace.get_tracer("caller").start_as_current_span(f"caller {number}"):
            # The state of the task that retries may stay RETRY, which Celery writes late: it is not awaited.
            sent = chain(ask.s("", f"question {number}"), start_other.s(), retry.s(), ask.s("last"))()
        context.detach(token)
        print(sent.get(timeout=100))
        retried = sent.parent
        for started in retried.parent.children:
            if started.id != retried.id:
                started.get(timeout=100)
    telemetry.shutdown()
