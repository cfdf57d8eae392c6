"""Telemetry at the ends of processes: exits, forks of servers that load the application first, threads left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import weakref
from textwrap import dedent

import pytest

from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.otlp_receiver import attributes_of, otlp_receiver
from support.processes import PATIENCE, python

COMMON = """
    import os, sys, threading
    from pellucid import Agent, ToolCall, tool
    from pellucid.testing import ScriptedModel
    from pellucid_exporters import configure

    @tool
    def work() -> str:
        return "ok"

    def agent():
        return Agent("a", model=ScriptedModel(ToolCall("work"), "done"), tools=[work])
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        python("-c", dedent(COMMON) + dedent(code)),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))},
    )


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise OSError('the end')", 1)],
    ids=["end", "exit", "exception"],
)
def test_the_last_run_before_an_exit_arrives(ending: str, code: int) -> None:
    """However a process comes to its end by itself, the run just before it is complete at the collector."""
    with otlp_receiver("http/protobuf") as receiver:
        done = run_python(
            f"""
            configure("shop", otlp={receiver.endpoint!r}, prometheus=0)
            agent().run_sync("x")
            {ending}
            """
        )
        assert done.returncode == code, done.stderr
        assert len(receiver.spans) == 8
        assert receiver.unresolved_parents() == []
        assert receiver.faults == []


def test_a_stream_under_way_at_an_exit_arrives_as_cancelled() -> None:
    """A run that the end of its event loop cuts short is there, with its outcome."""
    with otlp_receiver("http/protobuf") as receiver:
        done = run_python(
            f"""
            import anyio
            configure("shop", otlp={receiver.endpoint!r})

            async def main():
                stream = agent().stream("x")
                await stream.__aenter__()
                await anext(stream)
                main.kept = stream

            anyio.run(main)
            """
        )
        assert done.returncode == 0, done.stderr
        outcomes = {attributes_of(span)["pellucid.outcome"] for span in receiver.spans if "invoke" in span.name}
        assert outcomes == {"cancelled"}
        assert receiver.unresolved_parents() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_runs_in_workers_that_were_forked_after_loading() -> None:
    """A parent that ran agents before it forks, and its workers, each deliver their runs, once and whole."""
    with otlp_receiver("http/protobuf") as receiver:
        done = run_python(
            f"""
            telemetry = configure("shop", otlp={receiver.endpoint!r}, prometheus=0)
            agent().run_sync("before")
            children = []
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        import anyio
                        assert anyio.run(agent().run, "in the worker").output == "done"
                        code = 0 if telemetry.flush() else 2
                    finally:
                        os._exit(code)
                children.append(child)
            assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
            agent().run_sync("after")
            """
        )
        assert done.returncode == 0, done.stderr
        assert len(receiver.spans) == 5 * 8
        assert len({span.span_id for span in receiver.spans}) == 5 * 8
        assert len({span.trace_id for span in receiver.spans}) == 5
        assert receiver.unresolved_parents() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_run_sync_in_a_forked_worker() -> None:
    """The event loop behind `run_sync` is the process's own: a worker does not wait for its parent's thread."""
    done = run_python(
        """
        agent().run_sync("before")
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(20)
            code = 1
            try:
                code = 0 if agent().run_sync("in the worker").output == "done" else 1
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_importing_and_making_agents_starts_no_thread() -> None:
    """A server may load the application before it forks: threads begin with the first run or `configure`."""
    done = run_python(
        """
        import pellucid.mcp
        agent()
        assert threading.active_count() == 1, threading.enumerate()
        """
    )
    assert done.returncode == 0, done.stderr


def test_telemetry_that_nobody_uses_is_freed() -> None:
    """Instruments do not keep the meter provider that they lead back to."""
    with capture() as telemetry:
        Agent("a", model=ScriptedModel("done")).run_sync("go")
    provider = weakref.ref(telemetry.meter_provider)
    del telemetry
    gc.collect()
    assert provider() is None
