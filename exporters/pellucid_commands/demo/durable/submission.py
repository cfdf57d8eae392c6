"""Submission of the run: to the store, or to a server over HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
import anyio.to_thread
import requests
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind

from pellucid.durable_runs import DurableRuns
from pellucid.errors import ConfigError
from pellucid_commands.demo.durable.agent import QUESTION
from pellucid_commands.demo.durable.answers import TIMEOUT
from pellucid_commands.demo.durable.jobs import SCOPE
from pellucid_commands.demo.durable.processes import DemoFailed

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from pellucid_commands.demo.durable.notes import Notebook
    from pellucid_commands.demo.durable.options import ProcessOptions
    from pellucid_commands.demo.durable.processes import Processes

SERVER: Final = "server"

_START: Final = 30.0
"""Seconds in which the server must listen."""


def check_installed() -> None:
    """Check that the packages of the server are there.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--serve needs {' and '.join(missing)}; run: pip install 'pellucid[server]'")


async def start_server(processes: Processes, options: ProcessOptions, notebook: Notebook) -> str:
    """Start the server, and return its address.

    Raises:
        DemoFailed: it has ended, or does not listen in time.
    """
    processes.start("server", options.of(SERVER))
    with anyio.move_on_after(_START):
        while True:
            for note in notebook.read():
                if note.action == "listen":
                    return str(note.facts["url"])
            processes.check()
            await anyio.sleep(0.02)
    raise DemoFailed(f"the server does not listen after {_START:g} s")


async def submit(store: RunStore, options: ProcessOptions) -> str:
    """Submit the run within a span, which all other spans are below, and return its id.

    Raises:
        ConfigError: spans are not recorded.
    """
    with trace.get_tracer(SCOPE).start_as_current_span("submit", kind=SpanKind.PRODUCER) as span:
        if not span.is_recording():
            raise ConfigError("the environment turns off traces (OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER); unset it")
        if options.url is None:
            return await DurableRuns(store, []).submit(options.agent, QUESTION, run_id=uuid4().hex)
        headers = {"Prefer": "respond-async"}
        inject(headers)
        url = f"{options.url}/runs"
        answer = await anyio.to_thread.run_sync(
            lambda: requests.post(url, json={"input": QUESTION}, headers=headers, timeout=TIMEOUT)
        )
        answer.raise_for_status()
        return str(answer.json()["id"])
