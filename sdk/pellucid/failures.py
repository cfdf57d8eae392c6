"""Questions about a failure: its type, kind, description and causes; and what an application's code may raise."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
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


def error_type_of(error: BaseException) -> str:
    """Return the value of `error.type` for `error`: low in cardinality, stable between releases.

    Built-in exceptions give their bare name, others `module.qualname`; our own give that of their cause
    (OpenTelemetry, "Recording errors": https://opentelemetry.io/docs/specs/semconv/general/recording-errors/).
    """
    for each in _causes(error):
        if isinstance(each, PellucidError) and each.error_type:
            return each.error_type
        if isinstance(each, TimeoutError):
            return "timeout"
        error = each
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
    """Return what an error means, as far as its type or its cause says; of a group, what its first failure means."""
    return next((kind for each in _failures(error) if (kind := _kind_of(each)) != "unknown"), "unknown")


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
    response = getattr(error, "response", None)  # where HTTP clients keep the answer
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    return kind_of_status(status) if isinstance(status, int) else "unknown"


def retry_after_of(error: BaseException) -> float | None:
    """Return the seconds after which whoever failed wants to be asked again, as the error or its cause says."""
    for each in _failures(error):
        seconds = getattr(each, "retry_after", None)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and not math.isnan(seconds):
            return max(0.0, float(seconds))
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and, as long as these are ours, its causes, which may be a circle."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ if isinstance(found, PellucidError) else None


def _failures(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error with the first failure of a group in its place."""
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
    """Return what an HTTP status of a failure means."""
    return _STATUSES.get(status) or ("unavailable" if status >= 500 else "invalid_request")  # noqa: PLR2004


def describe(error: BaseException) -> str:
    """Return one informative line for `error`, looking into groups and causes where the error itself says nothing."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
            continue
        if text := _text(found):
            return f"{type(found).__name__}: {text}"
        found = found.__cause__ or found.__context__
    return type(error).__name__


def stack_of(error: BaseException) -> str:
    """Return a traceback with all causes; only the frames if a group contains itself, which Python formats for ever."""
    if not _contains_itself(error):
        return "".join(traceback.format_exception(error))
    return "".join(traceback.format_tb(error.__traceback__)) + describe(error)


def _contains_itself(error: BaseException) -> bool:
    """Say whether a group below this error, or below a cause of it, is met twice."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or (id(found) in seen and not isinstance(found, BaseExceptionGroup)):
            continue
        if id(found) in seen:
            return True
        seen.add(id(found))
        pending += (
            [found.__cause__, found.__context__] if found.__cause__ is not found.__context__ else [found.__cause__]
        )
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001  (an error that cannot say what it is has only its type)
        return ""


def contained(error: BaseException) -> Exception:
    """Return what an application's code raised as an `Exception`, which fails only the call in which it was raised.

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
    """Return whether `contained` turns this into an `UnexpectedExit`."""
    return not (isinstance(error, Exception) or interrupt_in(error) is not None or _passes(error))


def interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """Return the `KeyboardInterrupt` that an exception is, or that a group has in it."""
    return next((each for each in _failures_in(error) if isinstance(each, KeyboardInterrupt)), None)


def _passes(error: BaseException) -> bool:
    try:
        cancelled: type[BaseException] = anyio.get_cancelled_exc_class()
    except RuntimeError:  # there is no event loop, and nothing that it could cancel
        cancelled = GeneratorExit
    return any(isinstance(each, (cancelled, GeneratorExit)) for each in _failures_in(error))


def first_of(group: BaseException) -> BaseException:
    """Return the first failure inside a group, preferring real failures to cancellations.

    A group that has nothing but itself in it is what is returned.
    """
    failures = _failures_in(group)
    return next((error for error in failures if isinstance(error, Exception)), failures[0] if failures else group)


def _failures_in(error: BaseException) -> list[BaseException]:
    """Return an exception, or the exceptions inside a group in their order; the group may contain itself."""
    failures: list[BaseException] = []
    seen: set[int] = set()
    pending = [error]
    while pending:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, BaseExceptionGroup):
            pending.extend(reversed(found.exceptions))
        else:
            failures.append(found)
    return failures
