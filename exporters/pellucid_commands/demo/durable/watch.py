"""Progress of the run: its rows in the store, and the notes of the processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from pellucid_commands.demo.durable.processes import DemoFailed
from pellucid_exporters.console.tree import counted

if TYPE_CHECKING:
    from pellucid.durable import CallRecord, RunRecord, RunStore
    from pellucid_commands.demo.durable.notes import Action, Note, Notebook
    from pellucid_commands.demo.durable.processes import Processes

Moment: TypeAlias = tuple[float, str, str]
"""Seconds since the epoch, name of the process, and what happened."""

LONGEST: Final = 60.0
INTERVAL: Final = 0.03


@dataclass(slots=True)
class Watch:
    """State of a run, and of the processes that work on it.

    Attributes:
        on_change: Called with each change.
        run: Row of the run.
        calls: Rows of its calls, by tool.
        notes: Notes of all processes.
    """

    store: RunStore
    run_id: str
    notebook: Notebook
    processes: Processes
    on_change: Callable[[Moment], None]
    run: RunRecord | None = None
    calls: dict[str, CallRecord] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Look until a condition holds.

        Raises:
            DemoFailed: it does not hold in time, the run has failed, or a process has ended.
        """
        with anyio.move_on_after(LONGEST):
            while True:
                await self.look()
                if condition():
                    return
                if self.run is not None and self.run.status == "failed":
                    raise DemoFailed(f"waited for {what}, but the run failed: {self.run.result}")
                self.processes.check()
                await anyio.sleep(INTERVAL)
        raise DemoFailed(f"waited {LONGEST:g} s for {what}; the run is {self.status}")

    async def look(self) -> None:
        """Look once."""
        run = await self.store.run(self.run_id)
        calls = {call.tool: call for call in await self.store.calls(self.run_id)}
        notes = self.notebook.read()
        now = time.time()
        change = await self._change(run)
        texts = [change] if change and run is not None and run.status == "running" else []
        for text in (*texts, *_expired(self.calls, calls)):
            self.on_change((now, "store", text))
        for note in notes[len(self.notes) :]:
            self.on_change((note.time, note.process, _text_of(note)))
        if change and not texts:
            self.on_change((now, "store", change))
        self.run, self.calls, self.notes = run, calls, notes

    async def _change(self, run: RunRecord | None) -> str | None:
        """Return what has changed in the row of the run."""
        if run is None or (self.run is not None and (self.run.status, self.run.fence) == (run.status, run.fence)):
            return None
        if run.status == "running":
            steps = sum(entry.fence < run.fence for entry in await self.store.journal(self.run_id))
            owner, known = run.lease_owner, counted(steps, "step")
            return f"{owner} has the run: claim {run.fence}, pass {run.pass_no}, {known} journalled"
        if run.status == "waiting":
            return f"the run waits for {counted(run.pending, 'result')}"
        return f"the run is {run.status}"

    @property
    def status(self) -> str:
        """Status of the run."""
        return self.run.status if self.run is not None else ""

    def status_of(self, tool: str) -> str:
        """Return the status of the call of a tool."""
        return self.calls[tool].status if tool in self.calls else ""

    def count(self, action: Action) -> int:
        """Return how often an action was noted."""
        return sum(note.action == action for note in self.notes)


def _expired(before: dict[str, CallRecord], now: dict[str, CallRecord]) -> Iterator[str]:
    for tool, call in now.items():
        if call.status == "expired" and (tool not in before or before[tool].status != "expired"):
            yield f"{tool} expires"


def _text_of(note: Note) -> str:
    facts = note.facts
    return {
        "model": "requests an answer from the model",
        "stall": "still waits for that answer",
        "tool": f"runs {facts.get('tool')}",
        "enqueue": f"adds the job {facts.get('tool')} to the queue",
        "answer": f"answers {facts.get('tool')}: {facts.get('outcome')}",
        "kill": f"kills {facts.get('process')}: exit code {facts.get('exit_code')}",
        "listen": f"listens on {facts.get('url')}",
    }[note.action]
