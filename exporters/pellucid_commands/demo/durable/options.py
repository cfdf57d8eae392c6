"""Options of the processes of the demo, and the files that they share."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import anyio

from pellucid.durable import open_store
from pellucid.durable_runs import CallTokens, Completion
from pellucid.nats import NATSQueue
from pellucid_exporters import configure
from pellucid_exporters.file.options import File, LineType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pellucid.durable import RunStore
    from pellucid.durable_runs import WorkQueue
    from pellucid_exporters import Telemetry

SPANS: Final[tuple[LineType, ...]] = ("span",)

DELIVERY: Final = 1.5
"""Seconds for writing spans, and for sending them to a collector."""

PATIENCE: Final = 3.0
"""Seconds to wait for a database that is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of one process of the demo.

    Attributes:
        process: Name of the process, as it is printed.
        folder: Folder that all processes share.
        store: URL of the store.
        agent: Name of the agent, which no other demo on the same database uses.
        queue: URL of a NATS server, or None.
        otlp: URL of a collector, or None.
        key: Secret of the tokens of calls; None without a server.
        url: Address of the server, or None.
        lease: Seconds of a worker's lease.
        is_stalled: Whether the worker's model never answers its second request.
    """

    process: str
    folder: str
    store: str
    agent: str
    queue: str | None = None
    otlp: str | None = None
    key: str | None = None
    url: str | None = None
    lease: float = 30.0
    is_stalled: bool = False

    @classmethod
    def load(cls, text: str) -> Self:
        """Return the options that `dump` returned as text."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """Return the options as one line of text."""
        return json.dumps(asdict(self))

    def of(self, process: str, *, lease: float = 30.0, is_stalled: bool = False) -> Self:
        """Return the options of another process of the same demo."""
        return replace(self, process=process, lease=lease, is_stalled=is_stalled)

    @property
    def jobs(self) -> Path:
        """Folder of the jobs, one file each."""
        return Path(self.folder, "jobs")

    @property
    def notes(self) -> Path:
        """File of the notes of all processes."""
        return Path(self.folder, "notes.jsonl")

    @property
    def spans(self) -> Path:
        """Folder of the spans, one file for each process."""
        return Path(self.folder, "spans")

    @property
    def errors(self) -> Path:
        """File of the process's standard error."""
        return Path(self.folder, f"{self.process}.log")

    @property
    def tokens(self) -> CallTokens | None:
        """Maker and checker of the tokens of calls; None without a server."""
        return CallTokens(self.key) if self.key is not None else None

    @property
    def completion(self) -> Completion | None:
        """Where the job process returns results; None without a server."""
        return Completion(self.url, self.tokens) if self.url is not None and self.tokens is not None else None

    def open_store(self) -> RunStore:
        """Return the store, to be entered."""
        return open_store(self.store, patience=PATIENCE)

    @asynccontextmanager
    async def opened_queue(self) -> AsyncIterator[WorkQueue | None]:
        """Open the queue, if there is one.

        Raises:
            ConfigError: its URL is invalid, or nats-py is not installed.
        """
        if self.queue is None:
            yield None
            return
        async with NATSQueue(self.queue) as queue:
            yield queue

    def configure_telemetry(self) -> Telemetry:
        """Write the spans of this process to a file."""
        return configure(
            "pellucid-demo",
            file=File(self.spans / f"{self.process}.jsonl", types=SPANS),
            otlp=self.otlp or False,
            resource={"service.instance.id": self.process},
        )


def run_process(work: Callable[[ProcessOptions, Telemetry], Awaitable[None]]) -> None:
    """Run a process of the demo, with its options in the first line of standard input."""
    options = ProcessOptions.load(sys.stdin.readline())
    telemetry = options.configure_telemetry()
    try:
        anyio.run(work, options, telemetry)
    finally:
        telemetry.shutdown(DELIVERY)
