"""Session of the demo: submit a run, kill its worker, let another one continue, and give the run what it waits for."""

from __future__ import annotations

import json
import secrets
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import requests

from pellucid.durable.store.records import FINAL
from pellucid.errors import PellucidError
from pellucid.testing.outside import JobCompletion, OutsideService
from pellucid.text import clean
from pellucid_commands.demo.durable import agent
from pellucid_commands.demo.durable.processes import Processes
from pellucid_commands.demo.durable.report import introduce, report
from pellucid_commands.demo.page import cut, prepare_output, say, use_color
from pellucid_commands.demo.ports import free_port
from pellucid_commands.demo.store import writable_store
from pellucid_commands.serving.options import KEYS_VARIABLE

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

LEASE: Final = 2
"""Seconds of the lease of the worker that is killed: how long its run waits for another worker."""
RESULTS: Final = 2
"""Results of tools that are in the journal when the first worker is killed."""
MODEL: Final = 1.0
"""Seconds for which the first worker waits for its model before."""
QUOTE: Final = {"price": 1860, "days": 3}
QUOTES: Final = (JobCompletion(delay=4, output=QUOTE), JobCompletion(output=QUOTE))
"""Answers of the service: the same one twice, as if the first had not been acknowledged."""
TIMEOUT: Final = 60.0
"""Seconds for a request. A stream of events has a comment every 15 s."""
CANCELLATION: Final = 30.0
"""Seconds in which a worker ends a run that was cancelled."""


def show(options: Namespace) -> int:
    """Run the demo and return the exit code.

    Raises:
        ConfigError: a process cannot start; the message names the remedy.
        PellucidError: a process has ended.
    """
    prepare_output()
    for name in {"SIGTERM", "SIGHUP"} & set(dir(signal)):
        signal.signal(getattr(signal, name), signal.default_int_handler)  # its processes end with the demo
    color = use_color(no_color=options.no_color)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pellucid-demo-")))
        office = stack.enter_context(OutsideService(lambda _: QUOTES))
        store = options.store or f"sqlite:///{folder}/durable.db"
        local = writable_store() or folder / "telemetry.db"
        server = f"http://127.0.0.1:{free_port()}"
        arguments = [f"{agent.__name__}:AGENT", "--store", store, "--public-url", server, "--local", str(local)]
        arguments += ["--queue", options.queue] if options.queue is not None else []
        processes = Processes(folder, arguments, _environment(folder, office.url, options.otlp))
        stack.callback(processes.stop)
        processes.start("server", "serve", "--no-worker", "--port", server.rpartition(":")[2])
        processes.wait_for(server)
        workers = options.workers or (1 if store.startswith("sqlite") else 2)
        introduce(options, server, workers, color=color)
        demo = Demo(processes, server, workers)
        try:
            state = demo.play(keep=options.store is not None)
            while office.jobs and len(office.deliveries) < len(QUOTES):
                time.sleep(0.05)
        except requests.RequestException as error:
            processes.check()
            raise PellucidError(f"the server of the demo failed: {error}") from error
        processes.stop()  # which writes what is left of the trace
        return report(options, state, local, folder, office, color=color)


def _environment(folder: Path, office: str, otlp: str | None) -> dict[str, str]:
    return {
        agent.NAME: f"freight-{secrets.token_hex(3)}",  # which no other demo on this database has
        agent.FOLDER: str(folder),
        agent.OFFICE: office,
        KEYS_VARIABLE: secrets.token_urlsafe(32),
        "PELLUCID_API_TOKEN": "",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # what a worker has done leaves it before it is killed
        **({"OTEL_EXPORTER_OTLP_ENDPOINT": otlp} if otlp is not None else {}),
    }


class Demo:
    """A run of the demo on its server."""

    def __init__(self, processes: Processes, server: str, workers: int) -> None:
        self._processes = processes
        self._server = server
        self._workers = workers
        self._started = time.monotonic()

    def play(self, *, keep: bool) -> dict[str, Any]:
        """Submit the run, do what there is to do until it has ended, and return its state.

        Args:
            keep: Whether the store is kept, so that no unfinished run must be left in it.
        """
        self._processes.start("worker 1", "worker", "--lease", str(LEASE), **{agent.STALLS: "1"})
        submitted = self._post("/runs", {"input": agent.QUESTION}, {"Prefer": "respond-async"})
        run, results = f"/runs/{submitted['id']}", 0
        try:
            for name, event in self._events(run):
                if name == "run":
                    return event
                self._say("store", f"{name:<21}  {' '.join(str(fact) for fact in event.values())}")
                if name == "step.result":
                    results += 1
                    if results == RESULTS:
                        self._replace_worker()
                elif name == "approval.requested":
                    decision = {"approvalId": event["approvalId"], "approved": True}
                    self._say("demo", f"approves {event['toolName']}")
                    self._post(f"{run}/approvals", {"decisions": [decision]})
        except BaseException:
            if keep:
                self._cancel(run)
            raise
        raise PellucidError("the server of the demo has ended the stream of events")

    def _replace_worker(self) -> None:
        """Kill the first worker while it waits for its model, and start others."""
        for number in range(2, 2 + self._workers):
            self._processes.start(f"worker {number}", "worker")
        time.sleep(MODEL)
        self._say("demo", f"kills worker 1: exit code {self._processes.kill('worker 1')}")

    def _cancel(self, run: str) -> None:
        """Cancel the run, and wait until a worker has ended it."""
        with suppress(requests.RequestException):
            self._post(f"{run}/cancel", {"reason": "the demo was interrupted"})
            end = time.monotonic() + CANCELLATION
            while time.monotonic() < end and self._get(run).json()["status"] not in FINAL:
                time.sleep(0.1)

    def _events(self, run: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of the run as its server sends them, and last `run`, its state."""
        name = ""
        with self._get(f"{run}/events?wait=true", stream=True) as answer:
            for line in answer.iter_lines(chunk_size=1):
                kind, _, value = line.decode().partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    yield name, {key: fact for key, fact in json.loads(value).items() if key != "time"}
                else:
                    self._processes.check()

    def _get(self, path: str, *, stream: bool = False) -> requests.Response:
        answer = requests.get(f"{self._server}{path}", timeout=TIMEOUT, stream=stream)
        answer.raise_for_status()
        return answer

    def _post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        answer = requests.post(f"{self._server}{path}", json=body, headers=headers, timeout=TIMEOUT)
        answer.raise_for_status()
        return answer.json()

    def _say(self, who: str, text: str) -> None:
        say(cut(f"  {time.monotonic() - self._started:5.1f}  {who:<5}  {clean(text)}".rstrip()))
