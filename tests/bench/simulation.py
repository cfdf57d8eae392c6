"""Discrete-event simulation of durable runs: workers with slots, and one database.

A process is a generator that yields seconds to let pass, or a `Pool` to take something from. Service times are
exponential, as are the times between arrivals. See `docs/scaling.md` for the assumptions.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

Process: TypeAlias = Generator["float | Pool", Any, None]


class Pool:
    """Things that processes take and put back, first come, first served: free servers, free slots, due runs."""

    def __init__(self, simulation: Simulation, *items: Any) -> None:
        self._simulation = simulation
        self._items = deque(items)
        self._waiting: deque[Process] = deque()

    def put(self, item: Any) -> None:
        """Give an item to the process that has waited longest, or keep it."""
        if self._waiting:
            self._simulation.resume(self._waiting.popleft(), 0.0, item)
        else:
            self._items.append(item)

    def take(self, process: Process) -> None:
        """Resume a process with an item as soon as there is one."""
        if self._items:
            self._simulation.resume(process, 0.0, self._items.popleft())
        else:
            self._waiting.append(process)


class Simulation:
    """Processes in virtual time. Attributes: now: Seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Process, Any]] = []

    def resume(self, process: Process, delay: float = 0.0, value: Any = None) -> None:
        """Start or resume a process after a delay."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), process, value))

    def run(self, until: float) -> None:
        """Run all processes up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, process, value = heapq.heappop(self._events)
            try:
                wanted = process.send(value)
            except StopIteration:
                continue
            if isinstance(wanted, Pool):
                wanted.take(process)
            else:
                self.resume(process, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a simulation. Times are means in seconds.

    Attributes:
        rate: Runs that are submitted in a second.
        passes: Passes of a run; between them it waits for a result.
        steps: Transactions of a pass besides its claim, its end, and the settlement before it.
        model: Time of a pass that a model and tools take.
        wait: Time until a result arrives.
        workers: Worker processes.
        slots: Passes that each continues at once.
        transaction: Time that the database takes for one transaction.
        parallel: Transactions that it works on at once.
        processor: Time of a worker's processor for one transaction; a process uses one processor at a time.
    """

    rate: float
    passes: int = 2
    steps: int = 3
    model: float = 5.0
    wait: float = 20.0
    workers: int = 1
    slots: int = 50
    transaction: float = 0.0007
    parallel: int = 2
    processor: float = 0.0004

    @property
    def transactions(self) -> int:
        """Transactions of a run: submission, settlements, and of each pass the claim, the steps and the end."""
        return 1 + (self.passes - 1) + self.passes * (2 + self.steps)


@dataclass(slots=True)
class Outcome:
    """Measurements of a simulation.

    Attributes:
        due_waits: Times from due to claimed.
        ended: Passes that ended.
        database: Share of its time in which the database worked, of all that it can do at once.
        slots: Share of the slots that was used.
    """

    due_waits: list[float] = field(default_factory=list)
    ended: int = 0
    database: float = 0.0
    slots: float = 0.0

    def due_wait(self, share: float) -> float:
        """Return a percentile of the times from due to claimed."""
        return sorted(self.due_waits)[int(share * (len(self.due_waits) - 1))] if self.due_waits else 0.0


def simulate(load: Load, seconds: float, *, backlog: int = 0, seed: int = 1) -> Outcome:
    """Simulate so many seconds, starting with due runs."""
    return _World(load, seed).play(seconds, backlog)


class _World:
    def __init__(self, load: Load, seed: int) -> None:
        self.load = load
        self.random = random.Random(seed)
        self.simulation = Simulation()
        self.database = Pool(self.simulation, *range(load.parallel))
        self.due = Pool(self.simulation)
        self.outcome = Outcome()

    def play(self, seconds: float, backlog: int) -> Outcome:
        for _ in range(backlog):
            self.due.put((0.0, self.load.passes))
        self.simulation.resume(self.arrivals())
        for _ in range(self.load.workers):
            self.simulation.resume(self.worker())
        before = 3 * self.load.wait if self.load.rate else 0.0  # until results come as often as calls are made
        self.simulation.run(before)
        self.outcome = Outcome()
        self.simulation.run(before + seconds)
        self.outcome.database /= seconds * self.load.parallel
        self.outcome.slots /= seconds * self.load.workers * self.load.slots
        return self.outcome

    def time(self, mean: float) -> float:
        return self.random.expovariate(1 / mean) if mean else 0.0

    def transaction(self) -> Process:
        server = yield self.database
        took = self.time(self.load.transaction)
        self.outcome.database += took
        yield took
        self.database.put(server)

    def arrivals(self) -> Process:
        while self.load.rate:
            yield self.time(1 / self.load.rate)
            self.simulation.resume(self.submission())

    def submission(self) -> Process:
        yield from self.transaction()
        self.due.put((self.simulation.now, self.load.passes))

    def worker(self) -> Process:
        """Claim one run after the other, as long as a slot is free."""
        slots, processor = Pool(self.simulation, *range(self.load.slots)), Pool(self.simulation, 0)
        while True:
            slot = yield slots
            since, passes = yield self.due
            yield from self.work(processor)
            self.outcome.due_waits.append(self.simulation.now - since)
            self.simulation.resume(self.run_pass(slots, slot, processor, passes))

    def work(self, processor: Pool) -> Process:
        """Make a transaction from a worker."""
        free = yield processor
        yield self.time(self.load.processor)
        processor.put(free)
        yield from self.transaction()

    def run_pass(self, slots: Pool, slot: int, processor: Pool, passes: int) -> Process:
        start = self.simulation.now
        for _ in range(self.load.steps):
            yield self.time(self.load.model / max(self.load.steps, 1))
            yield from self.work(processor)
        yield from self.work(processor)
        self.outcome.ended += 1
        self.outcome.slots += self.simulation.now - start
        slots.put(slot)
        if passes > 1:
            yield self.time(self.load.wait)
            yield from self.transaction()
            self.due.put((self.simulation.now, passes - 1))
