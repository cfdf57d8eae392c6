"""Forks in every state: the child starts anew, whatever threads and event loops of the parent were doing."""

from __future__ import annotations

import os

import pytest

from support.processes import run_python

SCRIPT = """
import math, os, signal, sys, threading, traceback, warnings
from functools import partial
import anyio
from pellucid import Agent, DiscoveryContext, DiscoveryProvider, Reliability, semconv
from pellucid.reliability import CircuitBreaker
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
telemetry = capture().__enter__()
seconds = 0.0
in_lock, held = threading.Event(), threading.Event()

def clock():
    if threading.current_thread().name == "holder":
        in_lock.set()
        held.wait(60)
    return seconds

def provider(hub, **options):
    return DiscoveryProvider(hub, id="hub", clock=clock, **options)

def agent(*providers, **options):
    return Agent("a", model=ScriptedModel(*["done"] * 9), providers=providers, **options)

def in_thread(function, *args, name=None, **options):
    run = partial(anyio.run, function, *args, **options)
    threading.Thread(target=run, name=name, daemon=True).start()

def wait_for(condition):
    while not condition():
        held.wait(0.01)

def fork(state, run):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        code = 1
        try:
            assert run().output == "done"
            gauges = semconv.DISCOVERY_INFLIGHT.name, semconv.DISCOVERY_INFLIGHT_AGE.name
            assert {point.value for point in telemetry.metrics if point.name in gauges} <= {0}
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return state, child

backend = sys.argv[1]
children = []

def idle():
    able = agent(provider(FakeHub()))
    return lambda: anyio.run(able.run, "x", backend=backend)

def fetching():
    hub = FakeHub(latency=math.inf)
    able = agent(provider(hub, timeout=None))
    in_thread(able.run, "x", backend=backend)
    wait_for(lambda: hub.calls)
    hub.latency = 0
    return lambda: anyio.run(able.run, "y", backend=backend)

def refreshing():
    global seconds
    hub = FakeHub()
    able = agent(provider(hub, ttl=10, timeout=None, stale_while_revalidate=10))
    able.run_sync("x")
    hub.latency = math.inf
    seconds += 11
    able.run_sync("y")
    wait_for(lambda: len(hub.calls) == 2)
    def later():
        global seconds
        hub.latency = 0
        seconds += 20
        return anyio.run(able.run, "z", backend=backend)
    return later

def in_portal():
    able = agent(provider(FakeHub()))
    able.run_sync("x")
    return lambda: able.run_sync("y")

def open_breaker():
    hub = FakeHub(faults=[OSError()])
    guarded = agent(hub_provider := provider(hub), reliability=Reliability(breaker=CircuitBreaker(failures=1)))
    try:
        guarded.run_sync("x")
    except Exception:
        hub_provider.invalidate()
    return lambda: guarded.run_sync("y")

def feeding():
    hub = FakeHub(latency=math.inf)  # nothing of the run is going on while the listener is
    able, stuck, heard = agent(provider(hub, timeout=None)), threading.Event(), threading.Event()
    async def listen(event):
        if event.agent == "a" and not stuck.is_set():
            stuck.set()
            await anyio.sleep_forever()
        heard.set()
    able.on("run.started", listen)
    in_thread(able.run, "x")
    wait_for(lambda: stuck.is_set() and hub.calls)
    hub.latency = 0
    def again():
        result = able.run_sync("y")
        wait_for(heard.is_set)
        return result
    return again

def locked():
    able = agent(provider(FakeHub()))
    in_thread(able.run, "x", name="holder")
    wait_for(in_lock.is_set)
    return lambda: anyio.run(able.run, "y", backend=backend)

for state in (idle, fetching, refreshing, in_portal, open_breaker, feeding, locked):
    children.append(fork(state.__name__, state()))
failed = [state for state, child in children if os.waitpid(child, 0)[1] != 0]
os.write(1, repr(failed).encode())
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forked_child_starts_anew(backend: str) -> None:
    """No fetch, refresh, portal, breaker, queue or held lock of the parent keeps a child from running its agents."""
    assert run_python(SCRIPT, backend).stdout == "[]"
