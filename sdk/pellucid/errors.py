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
├─ ToolNameCollision              two providers offer one name
├─ ModelError                     a model failed; carries model
│  └─ ModelTimeout                it did not answer in time; also a TimeoutError
└─ ToolError                      a tool failed; tools raise it, the model gets its text
```

The fault of the hub, model or tool itself is always the `__cause__`.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DiscoveryBackoff",
    "DiscoveryError",
    "DiscoveryTimeout",
    "InvalidCatalog",
    "ModelError",
    "ModelTimeout",
    "PellucidError",
    "RunCancelled",
    "RunTimeout",
    "ToolError",
    "ToolNameCollision",
]


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
    """Two providers offer a tool of one name. Attributes: tool_name, first, second: the providers' ids."""

    error_type = "tool_name_collision"

    def __init__(self, tool_name: str, first: str, second: str) -> None:
        super().__init__(
            f"composing the request failed: tool {tool_name!r} is offered by both {first!r} and {second!r}; "
            f"rename one of them, or hide one with gated_tools()"
        )
        self.tool_name = tool_name
        self.first = first
        self.second = second


class ModelError(PellucidError):
    """A model call failed. Attributes: model: its name."""

    def __init__(self, model: str, message: str, *, error_type: str = "") -> None:
        super().__init__(f"call of model {model!r} failed: {message}")
        self.model = model
        self.error_type = error_type


class ModelTimeout(ModelError, TimeoutError):
    """A model did not answer within `Limits.model_timeout`."""


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
