from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest

from pellucid import ConfigError
from pellucid.events import EVENTS, Event, InferenceDelta, RunCompleted, RunStarted, ToolsDiscoveryStarted
from pellucid.telemetry.listeners import QUEUE_SIZE, Listeners

pytestmark = pytest.mark.anyio


def started(run_id: str = "r") -> RunStarted:
    """Return an event."""
    return RunStarted(run_id=run_id, agent="a", iteration=0, identity=None, trace_id="", span_id="", time=0.0)


@dataclass
class Faults:
    """Errors and dropped events of a delivery."""

    errors: list[tuple[str, BaseException]] = field(default_factory=list)
    dropped: int = 0

    def deliver(self, listeners: Listeners, event: Event) -> None:
        """Deliver an event and note the errors."""
        listeners.deliver(event, lambda part, error: self.errors.append((part, error)), self.drop)

    def drop(self) -> None:
        """Count a dropped event."""
        self.dropped += 1


class AsyncListener:
    """A listener that is an object with an async `__call__`."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, event: Event) -> None:
        """Note an event."""
        self.heard.append(event.run_id)


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [
        ("*", {RunStarted, RunCompleted, ToolsDiscoveryStarted, InferenceDelta}),
        ("run.*", {RunStarted, RunCompleted}),
        ("run.started", {RunStarted}),
        ("tools.*", {ToolsDiscoveryStarted}),
    ],
)
def test_patterns(pattern: str, heard: set[type[Event]]) -> None:
    """A pattern is a name, a group or `*`."""
    listeners = Listeners([(pattern, list)])
    kinds = (RunStarted, RunCompleted, ToolsDiscoveryStarted, InferenceDelta)
    assert {kind for kind in kinds if listeners.has_listener(kind.name)} == heard


@pytest.mark.parametrize("pattern", ["", "run", "run.", "runs.*", "run.starte", "*.started", ".*"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    """A pattern that matches no event is refused when the listener is added, and the error lists the events."""
    with pytest.raises(ConfigError, match=r"run\.started"):
        Listeners().add(pattern, list)


def test_a_listener_must_be_a_function() -> None:
    """A listener that is not callable is refused when it is added."""
    with pytest.raises(ConfigError, match="not callable"):
        Listeners().add("*", 3)  # type: ignore[arg-type]  # that is what is tested


def test_names_are_grouped() -> None:
    """The name of every event is a group and a fact."""
    assert all(name.count(".") == 1 and kind.name == name for name, kind in EVENTS.items())


def test_listeners_are_called_in_order_until_they_are_removed() -> None:
    """Listeners are called in order, and removing one twice leaves the others."""
    heard: list[str] = []
    listeners, faults = Listeners(), Faults()
    remove = listeners.add("*", lambda event: heard.append("first"))
    listeners.add("run.*", lambda event: heard.append("second"))
    faults.deliver(listeners, started())
    remove()
    remove()
    faults.deliver(listeners, started())
    assert heard == ["first", "second", "second"]
    assert faults.errors == []


def test_a_raising_listener_keeps_nothing_from_the_others() -> None:
    """The error of a listener is handed over, and the other listeners get the event."""
    heard: list[Event] = []
    error = ValueError("x")

    def fail(event: Event) -> None:
        raise error

    listeners, faults = Listeners([("*", fail), ("*", heard.append)]), Faults()
    faults.deliver(listeners, started())
    assert len(heard) == 1
    assert faults.errors == [("listener", error)]


def test_once_is_once() -> None:
    """A listener added with `once` hears one event, even if it causes another one meanwhile."""
    listeners, faults = Listeners(), Faults()
    heard: list[Event] = []

    def again(event: Event) -> None:
        heard.append(event)
        faults.deliver(listeners, started())

    listeners.add("*", again, once=True)
    faults.deliver(listeners, started())
    faults.deliver(listeners, started())
    assert len(heard) == 1
    assert not listeners.has_listener(RunStarted.name)


def test_once_is_once_in_many_threads() -> None:
    """A listener added with `once` hears one of several events that are delivered in several threads."""
    listeners, faults = Listeners(), Faults()
    heard: list[Event] = []
    for _ in range(200):
        listeners.add("*", heard.append, once=True)
    ready = threading.Barrier(4)

    def deliver() -> None:
        ready.wait(60)
        faults.deliver(listeners, started())

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heard) == 200


@pytest.mark.parametrize("kind", ["function", "partial", "object"])
async def test_async_listeners_hear_everything_in_order(kind: str) -> None:
    """An async function, partial or object is awaited for each event in order."""
    target = AsyncListener()

    async def hear(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        await target(event)

    async def hear_more(_extra: object, event: Event) -> None:
        await target(event)

    listener: Any = {"function": hear, "partial": partial(hear_more, None), "object": target}[kind]
    listeners, faults = Listeners([("*", listener)]), Faults()
    for number in range(100):
        faults.deliver(listeners, started(str(number)))
    assert target.heard == []
    with anyio.fail_after(60):
        await listeners.drain(5)
    assert target.heard == [str(number) for number in range(100)]
    assert not listeners.busy
    assert faults.errors == []


async def test_a_raising_async_listener_hears_the_next_event() -> None:
    """An async listener that raises hears the next event, and each error is handed over."""
    heard: list[str] = []

    async def fail(event: Event) -> None:
        heard.append(event.run_id)
        raise ValueError(event.run_id)

    listeners, faults = Listeners([("*", fail)]), Faults()
    for name in ("a", "b"):
        faults.deliver(listeners, started(name))
    with anyio.fail_after(60):
        await listeners.drain(5)
    assert heard == ["a", "b"]
    assert [(part, str(error)) for part, error in faults.errors] == [("listener", "a"), ("listener", "b")]


async def test_the_queue_of_a_slow_listener_is_bounded() -> None:
    """Events beyond the queue of a slow listener are dropped and counted, and it hears the others later."""
    go = anyio.Event()
    heard: list[str] = []

    async def slow(event: Event) -> None:
        await go.wait()
        heard.append(event.run_id)

    listeners, faults = Listeners([("*", slow)]), Faults()
    faults.deliver(listeners, started())
    with anyio.fail_after(60):
        await anyio.wait_all_tasks_blocked()
        for _ in range(QUEUE_SIZE + 7):
            faults.deliver(listeners, started())
        assert faults.dropped == 7
        await listeners.drain(0.01)
        assert not listeners.busy  # nobody waits for it a second time
        go.set()
        await listeners.drain(5)
        while len(heard) < QUEUE_SIZE + 1:
            await anyio.lowlevel.checkpoint()
    assert len(heard) == QUEUE_SIZE + 1


def test_a_listener_survives_its_event_loop() -> None:
    """An async listener hears events that were delivered outside of an event loop in the next one."""
    target = AsyncListener()
    listeners, faults = Listeners([("*", target)]), Faults()

    async def cut_off() -> None:
        faults.deliver(listeners, started("1"))

    async def go_on() -> None:
        with anyio.fail_after(60):
            faults.deliver(listeners, started("3"))
            await listeners.drain(5)

    for backend in ("asyncio", "trio"):
        target.heard.clear()
        anyio.run(cut_off, backend=backend)
        faults.deliver(listeners, started("2"))
        anyio.run(go_on, backend=backend)
        assert target.heard[-2:] == ["2", "3"]
    assert [part for part, _ in faults.errors] == ["listener"] * 2
