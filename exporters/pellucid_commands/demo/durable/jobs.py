"""Job process of the demo: takes the jobs of the queue, and answers them as the lines of its standard input say.

`answer <tool>` answers the job of a tool, `abandon <tool>` ends its heartbeats. The end of the input ends the process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind

from pellucid.durable_runs import DurableRuns
from pellucid_commands.demo.durable.agent import PATIENCE
from pellucid_commands.demo.durable.answers import Address, HTTPAnswers, StoreAnswers
from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.options import ProcessOptions, run_process

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.trace import Span

    from pellucid_exporters import Telemetry

SCOPE: Final = "pellucid-demo"
OUTCOME: Final = "demo.outcome"
"""Attribute with the outcome of a settlement."""

_RATES: Final = {"quote_road": {"price": 155, "days": 3}, "quote_rail": {"price": 98, "days": 5}}


@dataclass(slots=True)
class _Job:
    tool: str
    address: Address
    arguments: dict[str, Any]
    span: Span
    is_kept_alive: bool = True

    @property
    def output(self) -> dict[str, Any]:
        """The quote."""
        rate = _RATES[self.tool]
        return {**rate, "price": rate["price"] * int(self.arguments["pallets"])}


@dataclass(slots=True)
class JobProcess:
    """Jobs that were accepted, by tool."""

    answers: HTTPAnswers | StoreAnswers
    notebook: Notebook
    queue: Path
    jobs: dict[str, _Job] = field(default_factory=dict)

    async def follow(self) -> None:
        """Follow the lines of standard input."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive)
            async for line in anyio.wrap_file(sys.stdin):
                command, tool = line.split()
                job = await self._job(tool)
                job.is_kept_alive = False
                if command == "answer":
                    await self._answer(job)
            tasks.cancel_scope.cancel()

    async def _job(self, tool: str) -> _Job:
        """Return the job of a tool, once it is in the queue."""
        while tool not in self.jobs:
            self._accept()
            await anyio.sleep(0.05)
        return self.jobs[tool]

    def _accept(self) -> None:
        """Take new jobs. Their spans are children of the span that dispatched them."""
        for path in sorted(self.queue.glob("*.json")):
            content = json.loads(path.read_text())
            if content["tool"] not in self.jobs:
                span = trace.get_tracer(SCOPE).start_span(
                    f"job {content['tool']}", extract(content["headers"]), SpanKind.CONSUMER
                )
                address = Address(content["result_id"], content["url"], content["token"])
                self.jobs[content["tool"]] = _Job(content["tool"], address, content["arguments"], span)

    async def _keep_alive(self) -> None:
        """Accept jobs, and send heartbeats for those that were neither answered nor abandoned."""
        while True:
            self._accept()
            for job in self.jobs.values():
                if job.is_kept_alive:
                    await self.answers.heartbeat(job.address)
            await anyio.sleep(PATIENCE / 10)

    async def _answer(self, job: _Job) -> None:
        """Return the result of a job, and note whether it counts."""
        with (
            trace.use_span(job.span, end_on_exit=False),
            trace.get_tracer(SCOPE).start_as_current_span(f"settle {job.tool}") as span,
        ):
            outcome = await self.answers.settle(job.address, job.output)
            span.set_attribute(OUTCOME, outcome)
        if job.span.is_recording():
            job.span.end()
        self.notebook.write("answer", tool=job.tool, key=job.address.result_id, outcome=outcome)


async def serve(options: ProcessOptions, _telemetry: Telemetry) -> None:
    """Answer jobs until standard input is closed."""
    notebook = Notebook(options.notes, options.process)
    if options.url is not None:
        await JobProcess(HTTPAnswers(), notebook, options.jobs).follow()
        return
    async with options.open_store() as store:
        answers = StoreAnswers(DurableRuns(store, [], worker=options.process))
        await JobProcess(answers, notebook, options.jobs).follow()


if __name__ == "__main__":
    run_process(serve)
