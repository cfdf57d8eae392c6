"""An agent in tasks of Celery: the run belongs to the trace of whoever sent the task.

Needs `pip install pellucid 'celery[redis]'`. Without `REDIS_URL`, the task runs in the process that sends it. With it,
and after `celery --app celery_worker worker`, it runs in another one.
"""

from __future__ import annotations

import os

from celery import Celery
from opentelemetry import trace

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters import Telemetry, configure
from pellucid_exporters.celery import connect_celery

agent = Agent("orders", model=FunctionModel(lambda _: "It arrives tomorrow."))  # stands for a model

url = os.environ.get("REDIS_URL")
app = Celery("orders", broker=url, backend=url)
app.conf.task_always_eager = url is None


def start() -> Telemetry:
    """Configure telemetry; the OTEL_* variables say where it goes."""
    return configure("orders")


connect_celery(start)  # calls it in each process of the pool


@app.task(name="answer")
def answer(question: str) -> str:
    """Run the agent."""
    return agent.run_sync(question).output


def main() -> None:
    """Send a task, and wait for its result."""
    telemetry = start()  # of the process that sends tasks
    with trace.get_tracer("orders").start_as_current_span("POST /orders"):
        task = answer.delay("Where is order 17?")
    print(task.get(timeout=60))
    telemetry.shutdown()


if __name__ == "__main__":
    main()
