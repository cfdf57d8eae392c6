"""What a run tells providers, tools and models: who asks, how far it is, and when to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import anyio
from anyio.lowlevel import current_token
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import call_soon
from pellucid.errors import ConfigError
from pellucid.types import JSONValue

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """On whose behalf a run happens."""

    tenant: str | None = None
    principal: str | None = None
    conversation_id: str | None = None


class CancelToken:
    """A switch that stops runs; safe to use from any thread.

    ```python
    token = CancelToken()
    signal.signal(signal.SIGINT, lambda *_: token.cancel("interrupted"))
    await agent.run("...", signal=token)
    ```
    """

    __slots__ = ("__weakref__", "_callbacks", "_cancelled", "_lock", "_reason")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel while this very thread holds it
        self._cancelled = False
        self._reason: str | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}
        reset_in_child(self, _lock=threading.RLock, _callbacks=dict)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel()` was called."""
        return self._cancelled

    @property
    def reason(self) -> str | None:
        """What `cancel()` was given."""
        return self._reason

    def cancel(self, reason: str | None = None) -> None:
        """Cancel every run that uses this token; only the first call counts."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled, self._reason = True, reason
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    async def wait(self) -> None:
        """Wait until the token is cancelled."""
        event = anyio.Event()
        with self.calling(event.set):
            await event.wait()

    def calling(self, callback: Callable[[], None]) -> _Registration:
        """Call `callback` in the current event loop once the token is cancelled, while the context lasts."""
        return _Registration(self, callback)


class _Registration:
    """Keeps one callback registered; runs it at once if the token is cancelled already."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancelToken, callback: Callable[[], None]) -> None:
        self._token = token
        self._callback = callback

    def __enter__(self) -> None:
        token, callback, loop = self._token, self._callback, current_token()
        with token._lock:  # noqa: SLF001  (one class in two halves)
            token._callbacks[self] = lambda: call_soon(loop, callback)  # noqa: SLF001
            # Asked after it was registered, or a cancellation by a signal handler in between would be lost.
            late = token.cancelled and token._callbacks.pop(self, None) is not None  # noqa: SLF001
        if late:
            callback()

    def __exit__(self, *_: object) -> None:
        with self._token._lock:  # noqa: SLF001
            self._token._callbacks.pop(self, None)  # noqa: SLF001


class DiscoveryReport(Protocol):
    """Takes what a provider knows about a discovery; shown on its span and metric."""

    def __call__(self, *, cache: str | None = None, link: SpanContext | None = None) -> None:
        """Say whether the list came from the cache (`hit`, `stale`), a round trip (`miss`) or another's (`joined`)."""


def _unreported(*, cache: str | None = None, link: SpanContext | None = None) -> None:
    """Report to nobody: the provider was asked outside of a run."""


def _undescribed(attributes: Mapping[str, AttributeValue]) -> None:
    """Describe a round trip to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryContext:
    """What a tool provider may base its list on.

    Attributes:
        iteration: 1-based iteration of the run.
        active_skill_id: The skill activated last.
        active_skill_ids: All active skills, in the order of their activation.
        identity: On whose behalf the run happens.
        signal: The run's cancel token, if the caller gave one.
        deadline: When the run must be over, on the event loop's clock (`anyio.current_time()`).
        timeout: Seconds that a provider may take, unless it has a timeout of its own.
        report: Called by providers that cache; see `DiscoveryReport`. Wrappers pass it on with the context.
        describe: Called by providers with what they know of a round trip: attributes of its span, under names of the
            conventions.
    """

    iteration: int = 1
    active_skill_id: str | None = None
    active_skill_ids: tuple[str, ...] = ()
    identity: Identity | None = None
    signal: CancelToken | None = None
    deadline: float | None = None
    timeout: float | None = None
    report: DiscoveryReport = field(default=_unreported, repr=False, compare=False)
    describe: Callable[[Mapping[str, AttributeValue]], None] = field(default=_undescribed, repr=False, compare=False)

    def reporting(
        self,
        report: DiscoveryReport,
        describe: Callable[[Mapping[str, AttributeValue]], None],
        timeout: float | None,
    ) -> DiscoveryContext:
        """Return this with other values of these; `dataclasses.replace` takes three times as long."""
        return DiscoveryContext(
            iteration=self.iteration,
            active_skill_id=self.active_skill_id,
            active_skill_ids=self.active_skill_ids,
            identity=self.identity,
            signal=self.signal,
            deadline=self.deadline,
            timeout=timeout,
            report=report,
            describe=describe,
        )


def _unheard(value: JSONValue) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know of the run that calls it.

    Attributes:
        deps: What the caller of the run passed as `deps`, untouched.
        progress: Call it with any JSON-able value; it becomes a `tool.progress` event.
        deadline: When the run must be over, on the event loop's clock (`anyio.current_time()`).
    """

    run_id: str = ""
    iteration: int = 1
    tool_call_id: str = ""
    identity: Identity | None = None
    signal: CancelToken | None = None
    deadline: float | None = None
    deps: Any = None
    progress: Callable[[JSONValue], None] = field(default=_unheard, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run. Times are in seconds; `None` means no bound.

    Attributes:
        max_iterations: Passes of the loop. When the last one still asks for tools, they are run and the model is
            asked once more, without tools, for a closing answer.
        max_discoveries: Iterations that only discover lazy tools; these do not count as iterations. When they are used
            up, the model is told to call a tool or to answer.
        max_tool_tokens: Tokens that the definitions of the offered tools may take, by an estimate: four bytes of their
            JSON each. If they take more, the lazy tools that were used longest ago are deactivated; others never are.
        max_tool_calls: Tool calls of the whole run; further ones are refused and a closing answer is asked for.
        parallel_tools: Tool calls of one message that run at the same time.
        deadline: Wall-clock time of the whole run.
        discovery_timeout: Time for each provider to list its tools.
        model_timeout: Time for each model call.
        tool_timeout: Time for each tool call, unless the tool has its own.
        policy_timeout: Time for the permission policy to answer: about one call, or about all tools that are to be
            offered or activated. What it has not allowed by then is denied.
        approval_timeout: Time for a person to approve of a tool call; after that it is too late.
        max_result_bytes: Size at which a tool result is cut, with a notice to the model.
    """

    max_iterations: int = 10
    max_discoveries: int = 10
    max_tool_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tools: int = 8
    deadline: float | None = None
    discovery_timeout: float | None = 30.0
    model_timeout: float | None = 600.0
    tool_timeout: float | None = 120.0
    policy_timeout: float | None = 30.0
    approval_timeout: float | None = None
    max_result_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        for name in ("max_iterations", "parallel_tools", "max_result_bytes"):
            self._check(name, int, 1, "must be at least 1")
        self._check("max_tool_tokens", int, 1, "must be at least 1, or None", is_optional=True)
        self._check("max_discoveries", int, 0, "must not be negative")
        times = ("deadline", "discovery_timeout", "model_timeout", "tool_timeout", "policy_timeout", "approval_timeout")
        for name in ("max_tool_calls", *times):
            kinds = int if name == "max_tool_calls" else (int, float)
            self._check(name, kinds, 0, "must not be negative; use None for no bound", is_optional=True)

    def _check(
        self, name: str, kinds: type | tuple[type, ...], least: int, remedy: str, *, is_optional: bool = False
    ) -> None:
        value: Any = getattr(self, name)
        if value is None and is_optional:
            return
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number:
            kind = "a whole number" if kinds is int else "a number of seconds"
            raise ConfigError(f"Limits({name}={value!r}): must be {kind}{', or None' if is_optional else ''}")
        if not value >= least:  # so that NaN is refused, too
            raise ConfigError(f"Limits({name}={value!r}): {remedy}")


def propagate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Bind `function` to the context of this moment, for threads that do not take it along.

    Spans made in it are then children of the current one, and baggage is there. Tasks, `anyio.to_thread` and
    `asyncio.to_thread` take their context along by themselves; `executor.submit` and `loop.run_in_executor` do not:

    ```python
    futures = [executor.submit(propagate(fetch), url) for url in urls]
    ```

    What is returned may be called many times, at the same time too: each call gets a copy of the context.
    """
    context = copy_context()

    @wraps(function)
    def bound(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        return context.copy().run(function, *args, **kwargs)

    return bound
