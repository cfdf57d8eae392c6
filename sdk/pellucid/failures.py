"""Classification and description of failures, and containment of exceptions raised by application code."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import anyio

from pellucid.errors import (
    CircuitOpen,
    DiscoveryBackoff,
    DiscoveryError,
    ErrorKind,
    InvalidCatalog,
    ModelError,
    PellucidError,
    RunCancelled,
    ToolError,
    UnexpectedExit,
)
from pellucid.semconv import OTHER


def error_type_of(error: BaseException) -> str:
    """Return the value of `error.type` for `error`: low in cardinality, stable between releases.

    Built-in exceptions give their bare name, others `module.qualname`; Pellucid's own give that of their cause
    (OpenTelemetry, "Recording errors": https://opentelemetry.io/docs/specs/semconv/general/recording-errors/).
    """
    for cause in _causes(error):
        if isinstance(cause, PellucidError) and cause.error_type:
            return cause.error_type
        if isinstance(cause, TimeoutError):
            return "timeout"
        error = cause
    kind = type(error)
    if isinstance(error, PellucidError) or kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


_KINDS: Final[Sequence[tuple[ErrorKind, type[BaseException] | tuple[type[BaseException], ...]]]] = (
    ("cancelled", RunCancelled),
    ("timeout", TimeoutError),
    ("circuit_open", CircuitOpen),
    ("invalid_response", InvalidCatalog),
    ("unavailable", (OSError, DiscoveryBackoff)),
    ("tool_error", ToolError),
)


_TOOL_KINDS: Final[Mapping[str, ErrorKind]] = {"timeout": "timeout", "invalid_arguments": "invalid_request"}


def error_kind_of(error: BaseException) -> ErrorKind:
    """Return the kind of an error, by its type or its cause; for a group, the kind of its first failure."""
    return next((kind for failure in _failures(error) if (kind := _kind_of(failure)) != "unknown"), "unknown")


def _kind_of(error: BaseException) -> ErrorKind:
    if isinstance(error, ModelError | DiscoveryError | ToolError) and error.error_kind != "unknown":
        return error.error_kind
    if isinstance(error, ToolError) and error.error_type in _TOOL_KINDS:
        return _TOOL_KINDS[error.error_type]
    for kind, types in _KINDS:
        if isinstance(error, types):
            return kind
    if isinstance(error, PellucidError) and error.__cause__ is not None:
        return "unknown"
    response = getattr(error, "response", None)  # set by HTTP clients
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    return kind_of_status(status) if isinstance(status, int) else "unknown"


def retry_after_of(error: BaseException) -> float | None:
    """Return the `Retry-After` seconds of an error or its cause, if one has them."""
    for failure in _failures(error):
        seconds = getattr(failure, "retry_after", None)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and not math.isnan(seconds):
            return max(0.0, float(seconds))
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and, as long as these are Pellucid's, its causes."""
    return _walk(error, lambda current: [current.__cause__] if isinstance(current, PellucidError) else [])


def _walk(
    error: BaseException, related: Callable[[BaseException], Iterable[BaseException | None]]
) -> Iterator[BaseException]:
    """Yield an error and the `related` ones of each, depth first and once each; they may form a cycle."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            pending.extend(reversed([*related(current)]))


def _failures(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error, with each group replaced by its first failure."""
    for cause in _causes(error):
        if isinstance(cause, BaseExceptionGroup):
            yield from _causes(first_of(cause))
        else:
            yield cause


_STATUSES: Final[Mapping[int, ErrorKind]] = {
    401: "auth",
    402: "auth",
    403: "auth",
    408: "timeout",
    409: "unavailable",
    429: "rate_limited",
    504: "timeout",
}


def kind_of_status(status: int) -> ErrorKind:
    """Return the kind of failure that an HTTP error status stands for."""
    return _STATUSES.get(status) or ("unavailable" if status >= 500 else "invalid_request")  # noqa: PLR2004


def type_of_code(code: int) -> str:
    """Return the value of `error.type` for a code of JSON-RPC.

    Codes that no standard defines become `_OTHER`, to bound the number of time series.
    """
    is_standard = -32768 <= code <= -32000 or 100 <= code <= 599  # noqa: PLR2004  (JSON-RPC and HTTP ranges)
    return str(code) if is_standard else OTHER


def describe(error: BaseException) -> str:
    """Return a one-line description of `error`; if it has no text, that of the first group member or cause with one."""

    def related(current: BaseException) -> list[BaseException | None]:
        if isinstance(current, BaseExceptionGroup):
            return [current.exceptions[0]]
        return [current.__cause__ or current.__context__]

    for current in _walk(error, related):
        if not isinstance(current, BaseExceptionGroup) and (text := _text(current)):
            return f"{type(current).__name__}: {text}"
    return type(error).__name__


def stack_of(error: BaseException) -> str:
    """Return a traceback with all causes, or only the frames if a group contains itself: Python would never finish."""
    if not _contains_itself(error):
        return "".join(traceback.format_exception(error))
    return "".join(traceback.format_tb(error.__traceback__)) + describe(error)


def _contains_itself(error: BaseException) -> bool:
    """Return whether a group occurs twice among the members and causes of an error."""

    def related(current: BaseException) -> list[BaseException | None]:
        causes = {id(cause): cause for cause in (current.__cause__, current.__context__)}
        return [*causes.values(), *(current.exceptions if isinstance(current, BaseExceptionGroup) else ())]

    occurrences = [error, *(item for current in _walk(error, related) for item in related(current))]
    groups = [id(item) for item in occurrences if isinstance(item, BaseExceptionGroup)]
    return len(set(groups)) < len(groups)


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001  (an exception whose `__str__` fails is described by its type)
        return ""


def contained(error: BaseException) -> Exception:
    """Return an exception of application code as an `Exception`, which fails only the call that raised it.

    A cancellation, `GeneratorExit` and `KeyboardInterrupt` are raised again: they end more than the call.
    """
    if isinstance(error, Exception):
        return error
    if (interrupt := interrupt_in(error)) is not None:
        raise interrupt
    if _passes(error):
        raise error
    failure = UnexpectedExit(describe(error))
    failure.__cause__ = error
    return failure


def is_exit(error: BaseException) -> bool:
    """Return whether `contained` turns this exception into an `UnexpectedExit`."""
    return not (isinstance(error, Exception) or interrupt_in(error) is not None or _passes(error))


def interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """Return the exception itself, or the group member, that is a `KeyboardInterrupt`."""
    return next((failure for failure in _failures_in(error) if isinstance(failure, KeyboardInterrupt)), None)


def _passes(error: BaseException) -> bool:
    try:
        cancelled: type[BaseException] = anyio.get_cancelled_exc_class()
    except RuntimeError:  # no event loop is running
        cancelled = GeneratorExit
    return any(isinstance(failure, (cancelled, GeneratorExit)) for failure in _failures_in(error))


def first_of(group: BaseException) -> BaseException:
    """Return the first failure inside a group, preferring failures to cancellations.

    A group that contains only itself is returned as it is.
    """
    failures = _failures_in(group)
    return next((error for error in failures if isinstance(error, Exception)), failures[0] if failures else group)


def _failures_in(error: BaseException) -> list[BaseException]:
    """Return an exception, or the exceptions inside a group in order; the group may contain itself."""
    members = _walk(error, lambda current: current.exceptions if isinstance(current, BaseExceptionGroup) else ())
    return [member for member in members if not isinstance(member, BaseExceptionGroup)]
