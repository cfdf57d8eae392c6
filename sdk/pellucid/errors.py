"""Everything Pellucid raises.

```
PellucidError
├─ ConfigError                    a bad option; also a ValueError
├─ RunCancelled                   the run's CancelToken was cancelled
├─ RunTimeout                     the run passed its deadline; also a TimeoutError
├─ DiscoveryError                 a tool provider failed; carries provider_id
│  ├─ DiscoveryTimeout            it did not answer in time; also a TimeoutError
│  ├─ DiscoveryBackoff            not asked, because it failed a moment ago; carries retry_after
│  └─ InvalidCatalog              it answered something that is not a catalogue
├─ ToolNameCollision              two tools have one name
├─ ModelError                     a model failed; carries model, error_kind, status, request_id, retry_after
│  ├─ ModelTimeout                it did not answer in time; also a TimeoutError
│  └─ OutputError                 its answer is not of the type that `Agent(output=)` asks for
└─ ToolError                      a tool failed; tools raise it, the model gets its text
```

The fault of the hub, model or tool itself is always the `__cause__`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = [
    "ConfigError",
    "DiscoveryBackoff",
    "DiscoveryError",
    "DiscoveryTimeout",
    "ErrorKind",
    "InvalidCatalog",
    "ModelError",
    "ModelTimeout",
    "OutputError",
    "PellucidError",
    "RunCancelled",
    "RunTimeout",
    "ToolError",
    "ToolNameCollision",
]

ErrorKind: TypeAlias = Literal[
    "cancelled",
    "timeout",
    "rate_limited",
    "unavailable",
    "auth",
    "invalid_request",
    "invalid_response",
    "tool_error",
    "circuit_open",
    "unknown",
]
"""What a failure means for whoever has to decide what to do next, whichever vendor it came from."""


class PellucidError(Exception):
    """Root of all errors. Attributes: error_type: the value of `error.type` in telemetry, of low cardinality."""

    error_type: str = ""


class ConfigError(PellucidError, ValueError):
    """An option has a value that cannot work."""


class RunCancelled(PellucidError):
    """The run was cancelled through its `CancelToken`. Attributes: reason: what `cancel()` was given."""

    def __init__(self, agent: str, reason: str | None = None) -> None:
        super().__init__(f"run of agent {agent!r} was cancelled{f': {reason}' if reason else ''}")
        self.reason = reason


class RunTimeout(PellucidError, TimeoutError):
    """The run passed `Limits.deadline`."""

    error_type = "timeout"


class DiscoveryError(PellucidError):
    """A tool provider could not list its tools. Attributes: provider_id, problem: what was wrong."""

    def __init__(self, provider_id: str, problem: str) -> None:
        super().__init__(f"discovery of tools from provider {provider_id!r} failed: {problem}")
        self.provider_id = provider_id
        self.problem = problem


class DiscoveryTimeout(DiscoveryError, TimeoutError):
    """A tool provider did not answer within its timeout."""

    error_type = "timeout"


class DiscoveryBackoff(DiscoveryError):
    """A tool provider failed a moment ago and is left alone.

    Attributes: retry_after: seconds until it is asked again.
    """

    error_type = "backoff"

    def __init__(self, provider_id: str, retry_after: float, last: BaseException) -> None:
        super().__init__(
            provider_id,
            f"it failed a moment ago ({type(last).__name__}: {last}) and will be asked again in {retry_after:.1f} s",
        )
        self.retry_after = retry_after


class InvalidCatalog(DiscoveryError):
    """A tool provider answered something that is not a list of valid tools with distinct names."""

    error_type = "invalid_catalog"


class ToolNameCollision(PellucidError):
    """Two tools have one name. Attributes: tool_name, first, second: ids of their providers, or their sources."""

    error_type = "tool_name_collision"

    def __init__(self, tool_name: str, first: str, second: str, *, during: str = "composing the request") -> None:
        super().__init__(
            f"{during} failed: tool {tool_name!r} is offered by both {first!r} and {second!r}; "
            f"rename one of them, hide one with gated_tools(), or choose with collisions='first', 'last' or 'prefix'"
        )
        self.tool_name = tool_name
        self.first = first
        self.second = second


class ModelError(PellucidError):
    """A model call failed.

    Attributes:
        model: Its name.
        error_kind: What the failure means.
        status: HTTP status, if there was an answer.
        request_id: The vendor's id of the request, to quote in a support case.
        retry_after: Seconds after which the vendor wants to be asked again, if it said so.
    """

    def __init__(
        self,
        model: str,
        message: str,
        *,
        error_type: str = "",
        error_kind: ErrorKind = "unknown",
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"call of model {model!r} failed: {message}")
        self.model = model
        self.error_type = error_type
        self.error_kind = error_kind
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class ModelTimeout(ModelError, TimeoutError):
    """A model did not answer within `Limits.model_timeout`, or within the time that its adapter allows."""

    def __init__(
        self,
        model: str,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(
            model,
            message,
            error_type="timeout",
            error_kind="timeout",
            status=status,
            request_id=request_id,
            retry_after=retry_after,
        )


class OutputError(ModelError):
    """A model's answer is not of the type that `Agent(output=)` asks for. Attributes: text: the answer as it came."""

    def __init__(self, model: str, message: str, *, text: str) -> None:
        super().__init__(model, message, error_type="invalid_output", error_kind="invalid_response")
        self.text = text


class ToolError(PellucidError):
    """A tool failed. Raise it in a tool to choose what the model reads; the text is passed on as it is.

    Attributes: error_type: `error.type` of the tool's span, `tool_error` unless given.
    """

    def __init__(self, message: str, *, error_type: str = "tool_error") -> None:
        super().__init__(message)
        self.error_type = error_type


def error_type_of(error: BaseException) -> str:
    """Return the value of `error.type` for `error`: low in cardinality, stable between releases.

    Built-in exceptions give their bare name, others `module.qualname`; our own give that of their cause
    (OpenTelemetry, "Recording errors": https://opentelemetry.io/docs/specs/semconv/general/recording-errors/).
    """
    if isinstance(error, PellucidError) and error.error_type:
        return error.error_type
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, PellucidError) and error.__cause__ is not None:
        return error_type_of(error.__cause__)
    kind = type(error)
    if isinstance(error, PellucidError) or kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def error_kind_of(error: BaseException) -> ErrorKind:
    """Return what an error means, as far as its type says."""
    if isinstance(error, ModelError):
        return error.error_kind
    if isinstance(error, TimeoutError):
        return "timeout"
    return "unavailable" if isinstance(error, OSError) else "unknown"


def describe(error: BaseException) -> str:
    """Return one informative line for `error`, looking into groups and causes where the error itself says nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
            continue
        if text := _text(seen):
            return f"{type(seen).__name__}: {text}"
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001  (an error that cannot say what it is has only its type)
        return ""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure inside a group, preferring real failures to cancellations."""
    flat: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending = [*error.exceptions, *pending]
        else:
            flat.append(error)
    return next((error for error in flat if isinstance(error, Exception)), flat[0])
