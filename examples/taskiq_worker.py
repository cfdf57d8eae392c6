"""An agent in tasks of Taskiq: the run belongs to the trace of whoever sent the task.

Needs `pip install pellucid taskiq taskiq-redis`. Without `REDIS_URL`, the task runs in the process that sends
it. With it, and after `taskiq worker taskiq_worker:broker`, it runs in another one.
"""

from __future__ import annotations

import os

import anyio
from opentelemetry import trace
from taskiq import AsyncBroker, InMemoryBroker, TaskiqEvents, TaskiqState
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters import configure
from pellucid_exporters.taskiq import TraceMiddleware

# In each process, because those of a worker import this module; the OTEL_* variables say where telemetry goes.
telemetry = configure("orders")
agent = Agent("orders", model=FunctionModel(lambda _: "It arrives tomorrow."))  # stands for a model

url = os.environ.get("REDIS_URL")
broker: AsyncBroker = InMemoryBroker()
if url is not None:
    broker = ListQueueBroker(url).with_result_backend(RedisAsyncResultBackend(url))
broker = broker.with_middlewares(TraceMiddleware())


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def stop(_state: TaskiqState) -> None:
    """Send the rest: a worker may end without the exit handlers of Python."""
    telemetry.shutdown()


@broker.task
async def answer(question: str) -> str:
    """Run the agent; its providers keep their connections between tasks."""
    result = await agent.run(question)
    return result.output


async def main() -> None:
    """Send a task, and wait for its result."""
    await broker.startup()
    with trace.get_tracer("orders").start_as_current_span("POST /orders"):
        task = await answer.kiq("Where is order 17?")
    print((await task.wait_result(timeout=60)).return_value)
    await broker.shutdown()


if __name__ == "__main__":
    anyio.run(main)
