"""An agent in tasks of Celery: the run belongs to the trace of whoever sent the task.

Needs `pip install pellucid celery`. The broker here is a folder; a real one is `Celery("orders", broker="redis://…")`:

    celery --app celery_worker worker
    python -c 'from celery_worker import answer; print(answer.delay("Where is order 17?").get(timeout=60))'
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from celery import Celery
from opentelemetry import trace

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters import Telemetry, configure
from pellucid_exporters.celery import connect_celery

agent = Agent("orders", model=FunctionModel(lambda _: "It arrives tomorrow."))  # stands for a model

folder = os.environ.setdefault("BROKER", tempfile.mkdtemp())
app = Celery("orders", broker="filesystem://", backend=f"file://{folder}")
app.conf.broker_transport_options = {
    "data_folder_in": folder,
    "data_folder_out": folder,
    "control_folder": folder,
    "polling_interval": 0.1,
}


def start() -> Telemetry:
    """Configure telemetry; the OTEL_* variables say where it goes."""
    return configure("orders", resource={"service.instance.id": str(uuid.uuid4())})


connect_celery(start)  # in each process of the pool


@app.task(name="answer")
def answer(question: str) -> str:
    """Run the agent."""
    return agent.run_sync(question).output


def main() -> None:
    """Start a worker, send a task, and wait for its result."""
    telemetry = start()  # of the process that sends tasks
    options = ["worker", "--concurrency", "2", "--loglevel", "warning", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "--app", "celery_worker", *options]
    with subprocess.Popen(command, cwd=Path(__file__).parent) as worker:  # noqa: S603
        try:
            with trace.get_tracer("orders").start_as_current_span("POST /orders"):
                task = answer.delay("Where is order 17?")
            print(task.get(timeout=60))
        finally:
            worker.terminate()  # it finishes its tasks
    telemetry.shutdown()


if __name__ == "__main__":
    main()
