"""Subscriptions of listeners, typed: an event's name or class tells a type checker what the listener receives."""

# ruff: noqa: E501  (a line for each event)

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from pellucid import events
from pellucid.errors import ConfigError
from pellucid.events import Event
from pellucid.telemetry.listeners import Listeners
from pellucid.telemetry.pipeline import Listener

EventT = TypeVar("EventT", bound=Event)
ListenerT = TypeVar("ListenerT", bound=Callable[..., object])
ListenerOf: TypeAlias = Callable[[EventT], object]
Unsubscribe: TypeAlias = Callable[[], None]


class Subscribable:
    """Object whose events can be subscribed to."""

    @property
    def _listeners(self) -> Listeners:
        raise NotImplementedError

    # A test compares these signatures with `pellucid.events.EVENTS`.
    # fmt: off
    if TYPE_CHECKING:
        @overload
        def on(self, event: type[EventT], listener: ListenerOf[EventT], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["run.started"], listener: ListenerOf[events.RunStarted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["run.completed"], listener: ListenerOf[events.RunCompleted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["run.failed"], listener: ListenerOf[events.RunFailed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.discovery_started"], listener: ListenerOf[events.ToolsDiscoveryStarted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.discovery_completed"], listener: ListenerOf[events.ToolsDiscoveryCompleted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.discovery_failed"], listener: ListenerOf[events.ToolsDiscoveryFailed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.catalog_changed"], listener: ListenerOf[events.ToolsCatalogChanged], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.catalog_stale"], listener: ListenerOf[events.ToolsCatalogStale], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.discovery_pending"], listener: ListenerOf[events.ToolsDiscoveryPending], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.quarantined"], listener: ListenerOf[events.ToolsQuarantined], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.hidden_text"], listener: ListenerOf[events.ToolsHiddenText], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.shadowed"], listener: ListenerOf[events.ToolsShadowed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.budget_exceeded"], listener: ListenerOf[events.ToolsBudgetExceeded], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["request.composed"], listener: ListenerOf[events.RequestComposed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["inference.started"], listener: ListenerOf[events.InferenceStarted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["inference.delta"], listener: ListenerOf[events.InferenceDelta], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["inference.completed"], listener: ListenerOf[events.InferenceCompleted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["inference.failed"], listener: ListenerOf[events.InferenceFailed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["output.rejected"], listener: ListenerOf[events.OutputRejected], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.started"], listener: ListenerOf[events.ToolStarted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.progress"], listener: ListenerOf[events.ToolProgress], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.completed"], listener: ListenerOf[events.ToolCompleted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.failed"], listener: ListenerOf[events.ToolFailed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["async_tool.settled"], listener: ListenerOf[events.AsyncToolSettled], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["telemetry.error"], listener: ListenerOf[events.TelemetryError], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.searched"], listener: ListenerOf[events.ToolsSearched], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.activated"], listener: ListenerOf[events.ToolsActivated], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.deactivated"], listener: ListenerOf[events.ToolsDeactivated], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tools.redefined"], listener: ListenerOf[events.ToolsRedefined], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["context.compacted"], listener: ListenerOf[events.ContextCompacted], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["budget.low"], listener: ListenerOf[events.BudgetLow], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.output_invalid"], listener: ListenerOf[events.ToolOutputInvalid], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["tool.denied"], listener: ListenerOf[events.ToolDenied], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["approval.requested"], listener: ListenerOf[events.ApprovalRequested], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["approval.decided"], listener: ListenerOf[events.ApprovalDecided], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["async_tool.dispatched"], listener: ListenerOf[events.AsyncToolDispatched], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["async_tool.expired"], listener: ListenerOf[events.AsyncToolExpired], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["async_tool.late"], listener: ListenerOf[events.AsyncToolLate], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["async_tool.continued"], listener: ListenerOf[events.AsyncToolContinued], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["reliability.retried"], listener: ListenerOf[events.ReliabilityRetried], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["reliability.recovered"], listener: ListenerOf[events.ReliabilityRecovered], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["reliability.fell_back"], listener: ListenerOf[events.ReliabilityFellBack], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["reliability.failed_fast"], listener: ListenerOf[events.ReliabilityFailedFast], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["circuit.opened"], listener: ListenerOf[events.CircuitOpened], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["circuit.half_opened"], listener: ListenerOf[events.CircuitHalfOpened], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["circuit.closed"], listener: ListenerOf[events.CircuitClosed], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: Literal["score.recorded"], listener: ListenerOf[events.ScoreRecorded], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: str, listener: ListenerOf[Event], *, once: bool = False) -> Unsubscribe: ...
        @overload
        def on(self, event: type[EventT], *, once: bool = False) -> Callable[[ListenerOf[EventT]], ListenerOf[EventT]]: ...
        @overload
        def on(self, event: str, *, once: bool = False) -> Callable[[ListenerT], ListenerT]: ...
    # fmt: on

    def on(self, event: str | type[Event], listener: Listener | None = None, *, once: bool = False) -> Any:
        """Subscribe `listener` to the events of a name or class, or that match a pattern: `"tools.*"` or `"*"`.

        ```python
        agent.on("tool.failed", lambda event: print(event.tool_name, event.error))
        agent.on(ToolFailed, lambda event: print(event.tool_name, event.error))  # the same

        @agent.on(ToolFailed)
        def report(event: ToolFailed) -> None: ...
        ```

        A sync listener is called immediately and must not block; an async listener receives events from a bounded
        queue. A failure of a listener is counted and never reaches the run.

        Args:
            event: Name, class or pattern. Type checkers know the class of the events of a name; those that match a
                pattern are an `Event`.
            listener: Function of an event; without it, this is a decorator of the function.
            once: Whether the listener receives only one event.

        Returns:
            A function that ends the subscription; of a decorated function, the function itself.

        Raises:
            ConfigError: no event has this name or class, or matches the pattern.
        """
        if listener is None:
            return lambda function: (self.on(event, function, once=once), function)[1]
        remove = self._listeners.add(_pattern(event), listener, once=once)
        if self._listeners.has_listener("score.recorded"):
            from pellucid.telemetry.late_listeners import keep

            keep(self._listeners, getattr(self, "name", ""))
        return remove


def _pattern(event: object) -> str:
    if isinstance(event, str):
        return event
    if event is Event:
        return "*"
    if isinstance(event, type) and issubclass(event, Event):
        return event.name
    raise ConfigError(f"{event!r} is not an event; give its name, such as 'tool.failed', its class, or a pattern")
