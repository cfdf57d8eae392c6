"""Delivery of events to listeners, isolated from the run."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.errors import ConfigError
from pellucid.events import Event
from pellucid.failures import contained

if TYPE_CHECKING:
    from pellucid.telemetry.pipeline import Listener

QUEUE_SIZE: Final = 1024
"""Maximum number of queued events per async listener; further ones are dropped and counted."""

Fault: TypeAlias = Callable[[str, BaseException], None]
"""Callback for faults: takes the part that failed, and the error."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Subscription:
    """Subscription of one listener to the events that match a pattern.

    Attributes:
        pattern: Name of an event, `prefix.*` or `*`.
        listener: The listener.
        once: Whether the listener receives only one event.
        names: Names of the events that match the pattern.
        queue: Queued events of an async listener; None for a sync one.
        pumping: Whether a task is feeding the listener.
        stuck: Whether a wait for the listener timed out; there is no further wait until it has handled an event.
        waiting: Callbacks for when the queue is empty.
    """

    pattern: str
    listener: Listener
    once: bool
    names: frozenset[str] = field(init=False)
    queue: deque[Event] | None = field(init=False)
    pumping: bool = field(init=False, default=False)
    stuck: bool = field(init=False, default=False)
    waiting: list[Callable[[], None]] = field(init=False, default_factory=list)
    # A destructor that garbage collection runs here may re-enter.
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.names = _matching(self.pattern)
        listener = self.listener
        if not callable(listener):
            raise ConfigError(f"{listener!r} cannot listen to {self.pattern!r}: it is not callable")
        is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__)
        self.queue = deque() if is_async else None
        # The parent process delivers the queued events.
        queue = deque if is_async else lambda: None
        reset_in_child(self, _lock=threading.RLock, queue=queue, pumping=bool, stuck=bool, waiting=list)

    def put(self, event: Event) -> bool:
        """Queue an event; return whether a task must be started to feed the listener."""
        assert self.queue is not None
        with self._lock:
            self.queue.append(event)
            idle, self.pumping = not self.pumping, True
        return idle

    def take(self) -> Event | None:
        """Return the next event, or None, with which the task that feeds the listener ends."""
        with self._lock:
            if self.queue:
                return self.queue.popleft()
            self.pumping = False
        return None


class Listeners:
    """Listeners of one agent. Safe to change from any thread and during runs."""

    def __init__(self, subscriptions: Sequence[tuple[str, Listener]] = ()) -> None:
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._by_name: dict[str, tuple[Subscription, ...]] = {}
        for pattern, listener in subscriptions:
            self.add(pattern, listener)

    def add(self, pattern: str, listener: Listener, *, once: bool = False) -> Callable[[], None]:
        """Subscribe `listener` to events that match `pattern`; return a function that unsubscribes it.

        Raises:
            ConfigError: no event matches the pattern, or the listener is not callable.
        """
        subscription = Subscription(pattern, listener, once)
        self._change(lambda present: (*present, subscription))

        def remove() -> None:
            self._remove(subscription)

        return remove

    def has_listener(self, name: str) -> bool:
        """Return whether a listener is subscribed to events of this name; if not, the event need not be created."""
        return name in self._by_name

    @property
    def names(self) -> Container[str]:
        """Names of the events to which a listener is subscribed, now and later."""
        return self._by_name

    def deliver(self, event: Event, fault: Fault, dropped: Callable[[], None]) -> None:
        """Call sync listeners and queue the event for async ones; their failures are passed to `fault`."""
        for subscription in self._by_name.get(event.name, ()):
            if subscription.once and not self._remove(subscription):
                continue  # another thread has just delivered the one event
            if subscription.queue is None:
                try:
                    subscription.listener(event)
                except BaseException as error:  # noqa: BLE001  (a listener may raise anything; the run continues)
                    fault("listener", contained(error))
            elif len(subscription.queue) >= QUEUE_SIZE:
                dropped()
            elif subscription.put(event):
                try:
                    spawn(_pump, subscription, fault)
                except Exception as error:  # noqa: BLE001  (no event loop: the run is collected after its loop ended)
                    subscription.pumping = False
                    fault("listener", error)

    @property
    def busy(self) -> Sequence[Subscription]:
        """Async listeners that still have events to receive, and are not stuck."""
        return [subscription for subscription in self._subscriptions if subscription.pumping and not subscription.stuck]

    async def drain(self, patience: float) -> None:
        """Wait until async listeners have received all queued events, for at most `patience` seconds."""
        busy = self.busy
        with anyio.move_on_after(patience) as scope:
            for subscription in busy:
                idle = anyio.Event()
                subscription.waiting.append(partial(call_soon, current_token(), idle.set))
                if subscription.pumping:
                    await idle.wait()
        if scope.cancelled_caught:
            for subscription in busy:
                subscription.stuck = subscription.pumping

    def _remove(self, subscription: Subscription) -> bool:
        """Remove a listener; return whether it was subscribed."""
        return self._change(lambda present: tuple(other for other in present if other is not subscription))

    def _change(self, change: Callable[[tuple[Subscription, ...]], tuple[Subscription, ...]]) -> bool:
        with self._lock:
            before, self._subscriptions = self._subscriptions, change(self._subscriptions)
            by_name: dict[str, tuple[Subscription, ...]] = {}
            for subscription in self._subscriptions:
                for name in subscription.names:
                    by_name[name] = (*by_name.get(name, ()), subscription)
            self._by_name.update(by_name)  # in place: `Scope.has_listener` is a method of it
            for name in self._by_name.keys() - by_name.keys():
                del self._by_name[name]
            return len(before) != len(self._subscriptions)


async def _pump(subscription: Subscription, fault: Fault) -> None:
    """Feed one async listener until its queue is empty."""
    try:
        while (event := subscription.take()) is not None:
            try:
                await subscription.listener(event)
            except BaseException as error:  # noqa: BLE001  (a listener may raise anything; the run continues)
                fault("listener", contained(error))
            subscription.stuck = False
    except BaseException:
        subscription.pumping = False
        raise
    finally:
        while subscription.waiting:
            subscription.waiting.pop()()


def _matching(pattern: str) -> frozenset[str]:
    from pellucid.feature_events import EVENTS

    if pattern == "*":
        return frozenset(EVENTS)
    if pattern.endswith(".*"):
        names = frozenset(name for name in EVENTS if name.startswith(pattern[:-1]))
    else:
        names = frozenset({pattern} & EVENTS.keys())
    if not names:
        raise ConfigError(f"no event matches {pattern!r}; the events are {', '.join(sorted(EVENTS))}")
    return names
