"""Contexts that a run passes to providers and tools: identity, cancellation, expiry and limits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import wraps
from typing import Any, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import anyio
from anyio.lowlevel import current_token
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import call_soon
from pellucid.module_names import explained, renamed
from pellucid.types import DepsT_co, JSONValue

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity on whose behalf a run acts."""

    tenant: str | None = None
    principal: str | None = None
    conversation_id: str | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(value, str | None) for value in (self.tenant, self.principal, self.conversation_id)):
            from pellucid.caller_checks import check_identity

            check_identity(self)


class CancelToken:
    """A token that cancels runs; safe to use from any thread.

    ```python
    token = CancelToken()
    signal.signal(signal.SIGINT, lambda *_: token.cancel("interrupted"))
    await agent.run("...", signal=token)
    ```
    """

    __slots__ = ("__weakref__", "_callbacks", "_cancelled", "_lock", "_reason")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel while its own thread holds the lock
        self._cancelled = False
        self._reason: str | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}
        reset_in_child(self, _lock=threading.RLock, _callbacks=dict)

    @property
    def cancelled(self) -> bool:
        """True if `cancel()` was called."""
        return self._cancelled

    @property
    def reason(self) -> str | None:
        """Reason given to `cancel()`."""
        return self._reason

    def cancel(self, reason: str | None = None) -> None:
        """Cancel every run that uses this token; later calls have no effect."""
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

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` in the current event loop when the token is cancelled, immediately if it is already."""
        key, loop = object(), current_token()
        with self._lock:
            self._callbacks[key] = lambda: call_soon(loop, callback)
            # Checked after registration, or a cancellation by a signal handler in between would be lost.
            is_cancelled = self._cancelled and self._callbacks.pop(key, None) is not None
        if is_cancelled:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)


class DiscoveryReport(Protocol):
    """Callback with which a provider reports its cache outcome, for the span and the metric of the discovery."""

    def __call__(self, *, cache: str | None = None, link: SpanContext | None = None) -> None:
        """Report the cache outcome.

        It is `hit`, `stale`, `miss` (own round trip), `joined` (round trip of another run) or `pending` (a round trip
        that continues in the background, without whose tools the run goes on).
        """


class Patience(NamedTuple):
    """Time that an iteration waits for a hub; then it goes on with the previous catalogue, or with no tools of the hub.

    Attributes:
        seconds: Seconds from the start of a round trip.
        tell_model: Whether the instructions mention that tools are missing.
    """

    seconds: float
    tell_model: bool = False


UNLIMITED: Final = Patience(math.inf)
"""Patience of a warm-up, which waits for every hub without a limit."""


def _ignore(*_: object, **__: object) -> None:
    """Ignore a report, outside of a run."""


@renamed(deadline="expires_at")
@dataclass(frozen=True, kw_only=True)  # without slots, for `reporting`
class DiscoveryContext:
    """Context of a discovery: the facts on which a tool provider may base its list.

    Attributes:
        iteration: 1-based iteration of the run.
        active_skill_id: The skill activated last.
        active_skill_ids: All active skills, in order of activation.
        identity: Identity on whose behalf the run acts.
        signal: The run's cancel token, if the caller gave one.
        expires_at: Time at which the run must end, in UTC; None if it has no limit.
        timeout: Seconds that a provider may take, unless it has a timeout of its own.
        patience: Patience with providers that have none of their own; if it is unlimited, with all providers.
        report: Callback for providers that cache; see `DiscoveryReport`. Wrappers pass it on with the context.
        describe: Callback for attributes of the round trip's span, named as in the conventions.
        notify: Callback for a sentence that is added to the instructions for the rest of the run, once.
        requested: Callback for the requests to the hub that the listing made, for the span of the discovery.
        is_retry: Whether a reliability rule repeats a request that failed. Providers then make it, although they back
            off from the hub for other callers.
    """

    iteration: int = 1
    active_skill_id: str | None = None
    active_skill_ids: tuple[str, ...] = ()
    identity: Identity | None = None
    signal: CancelToken | None = None
    expires_at: datetime | None = None
    timeout: float | None = None
    patience: Patience | None = None
    report: DiscoveryReport = field(default=_ignore, repr=False, compare=False)
    describe: Callable[[Mapping[str, AttributeValue]], None] = field(default=_ignore, repr=False, compare=False)
    notify: Callable[[str], None] = field(default=_ignore, repr=False, compare=False)
    requested: Callable[[Any], None] = field(default=_ignore, repr=False, compare=False)
    is_retry: bool = False

    @property
    def is_observed(self) -> bool:
        """True if a boundary observes the listing, as it does in a run."""
        return self.report is not _ignore

    @property
    def waits(self) -> bool:
        """True if the listing waits for every hub without a limit."""
        return self.patience is not None and self.patience.seconds == math.inf

    def reporting(
        self,
        report: DiscoveryReport,
        describe: Callable[[Mapping[str, AttributeValue]], None],
        timeout: float | None,
        requested: Callable[[Any], None],
        *,
        is_retry: bool = False,
    ) -> DiscoveryContext:
        """Return a copy with these callbacks and timeout; `dataclasses.replace` takes five times as long."""
        copy, is_retry = object.__new__(DiscoveryContext), is_retry or self.is_retry
        callbacks = {"report": report, "describe": describe, "requested": requested}
        vars(copy).update(vars(self), timeout=timeout, is_retry=is_retry, **callbacks)
        return copy


@renamed(deadline="expires_at")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCall:
    """Address and credentials with which another process returns the result of a call.

    Attributes:
        result_id: Id of the result, `async_tool_` and a UUID; also the idempotency key of the work.
        complete_path: Path of the completion endpoint, `/async-tools/<result id>/complete`.
        complete_url: Address of that endpoint; None without a server.
        token: Secret that allows to complete this call and no other; None without a server.
        expires_at: Time at which the call expires, in UTC; None if it never does.
        headers: W3C Trace Context of the dispatching span, for the spans of the other process.
    """

    result_id: str
    complete_path: str
    complete_url: str | None = None
    token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


_NO_DEPS: Final[Any] = None


@renamed(deadline="expires_at")
@dataclass(frozen=True, kw_only=True)  # with slots, Python 3.11 cannot call `ToolContext[Deps](...)`
class ToolContext(Generic[DepsT_co]):
    """Context of a tool call: the run that makes it. `ToolContext[Deps]` is that of a run with such `deps`.

    Attributes:
        idempotency_key: Key of the call: the same if the call is repeated, by a retry or in another process after a
            crash, and unique otherwise. Send it to services that recognize repeated requests.
        deps: Value that the caller of the run passed as `deps`, unchanged.
        progress: Function that emits its argument, any JSON-able value, as a `tool.progress` event.
        expires_at: Time at which the run must end, in UTC; None if it has no limit.
        heartbeat: Function that shows that a call in the background is alive; see `Tool.heartbeat`.
        external: Data with which another process returns the result, if the tool has `execution="external-dispatch"`.
    """

    run_id: str = ""
    iteration: int = 1
    tool_call_id: str = ""
    idempotency_key: str = ""
    identity: Identity | None = None
    signal: CancelToken | None = None
    expires_at: datetime | None = None
    deps: DepsT_co = _NO_DEPS
    progress: Callable[[JSONValue], None] = field(default=_ignore, repr=False, compare=False)
    heartbeat: Callable[[], None] = field(default=_ignore, repr=False, compare=False)
    external: ExternalCall | None = None


@renamed(deadline="timeout")
@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run. Times are in seconds; `None` means no bound.

    Attributes:
        max_iterations: Passes of the loop. If the last one requests tools, they are run and the model is called once
            more, without tools, for a closing answer.
        max_discoveries: Iterations that only discover lazy tools; they do not count as iterations. After the last one
            nothing more can be discovered, and they count: the model is asked to call a tool that it has, or to answer.
            None is twice `max_iterations`.
        max_tool_tokens: Estimated tokens for the definitions of the offered tools, at four bytes of JSON a token. Above
            it, the least recently used lazy tools are deactivated; other tools never are.
        max_tool_calls: Tool calls of the whole run. Further calls are not run, and the model is called for a closing
            answer.
        max_cost: US dollars that the model calls of the run may cost, with those of its sub-agents and those before it
            was resumed. A call is made only if what it costs at least fits, and its `max_tokens` is at most what
            remains. When the limit is reached, no further tool is run, and the model is called for a closing answer if
            that still fits. The prices of all models must be known.
        max_tokens: Tokens of these calls, input and output, in the same way.
        max_model_calls: These calls, each attempt counted. The last one is kept for the closing answer.
        max_depth: Runs that may be nested in this one, one in another. A run that the code of a tool starts counts like
            that of a sub-agent. The call beyond is refused to the model.
        parallel_tools: Tool calls of one message that run concurrently.
        timeout: Time for the whole run; of a durable run, for each of its passes.
        discovery_timeout: Time for each provider to list its tools.
        model_timeout: Time for each model call.
        tool_timeout: Time for each tool call, unless the tool has its own, and for each function of the instructions.
        policy_timeout: Time for the permission policy to decide about one call, or about all tools to offer or
            activate. Tools and calls without a decision by then are denied.
        approval_timeout: Time for a person to approve a tool call; then the request expires.
        max_result_bytes: Size at which a tool result is cut, with a notice to the model.
    """

    max_iterations: int = 10
    max_discoveries: int | None = None
    max_tool_tokens: int | None = None
    max_tool_calls: int | None = None
    max_cost: float | None = None
    max_tokens: int | None = None
    max_model_calls: int | None = None
    max_depth: int = 8
    parallel_tools: int = 8
    timeout: float | None = None
    discovery_timeout: float | None = 30.0
    model_timeout: float | None = 600.0
    tool_timeout: float | None = 120.0
    policy_timeout: float | None = 30.0
    approval_timeout: float | None = None
    max_result_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        if any(getattr(self, item.name) is not item.default for item in fields(self)):
            from pellucid.limit_checks import check_limits

            check_limits(self)


def propagate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Bind `function` to the current context, for threads that do not inherit it.

    Spans that the function starts are children of the current span, and it sees the current baggage. Tasks,
    `anyio.to_thread` and `asyncio.to_thread` copy the context themselves; `executor.submit` and `loop.run_in_executor`
    do not:

    ```python
    futures = [executor.submit(propagate(fetch), url) for url in urls]
    ```

    The returned function may be called many times, also concurrently: each call gets a copy of the context.
    """
    context = copy_context()

    @wraps(function)
    def bound(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        return context.copy().run(function, *args, **kwargs)

    return bound
