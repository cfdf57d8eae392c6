"""Calls whose work is done outside of the process, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, TypeAlias, get_args

from pellucid.errors import CheckpointError, ConfigError
from pellucid.messages import Part, load_part
from pellucid.module_names import renamed
from pellucid.types import JSONObject, JSONValue

MAX_TIME: Final = 1e11
"""Maximum number of seconds since the epoch, which also rules out infinity and NaN."""

STORED_KEYS: Final = {"expires_at": "deadline"}
"""Names that fields of `ExternalRequest` have in checkpoints and journals, where they differ."""

_NONE: Final[Mapping[str, EndedCall]] = {}

CallStatus: TypeAlias = Literal["completed", "failed", "expired", "cancelled"]

_STATUSES: Final[tuple[CallStatus, ...]] = get_args(CallStatus)


@renamed(content="output_or_error")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalResult:
    """Result of a call that was dispatched to another process.

    Attributes:
        result_id: Id of the call, `ToolContext.external.result_id`.
        output: JSON-able result; None unless the status is `completed`.
        error: Reason that the model reads, unless the status is `completed`.
        status: `completed`; or `failed`, `expired` or `cancelled`, by default `failed` if there is an `error`.
        settled_at: Time at which the result was there, in seconds since the epoch, at which the wait for it ends in
            telemetry; by default when the run resumes.

    Raises:
        ConfigError: the status does not fit the output and the error, or the time is out of range.
    """

    result_id: str
    output: JSONValue = None
    error: str | None = None
    status: CallStatus | None = None
    settled_at: float | None = None

    def __post_init__(self) -> None:
        status = self.status or ("completed" if self.error is None else "failed")
        object.__setattr__(self, "status", status)
        if status not in _STATUSES:
            raise ConfigError(
                f"ExternalResult(status={status!r}) of {self.result_id!r}: use one of {', '.join(_STATUSES)}"
            )
        if status == "completed" and self.error is not None:
            raise ConfigError(f"ExternalResult of {self.result_id!r} is completed and has an error; remove one of them")
        if status == "failed" and not self.error:
            raise ConfigError(f"ExternalResult of {self.result_id!r} failed without an error; say what failed")
        if self.settled_at is not None and not 0 <= self.settled_at < MAX_TIME:
            raise ConfigError(f"ExternalResult(settled_at={self.settled_at!r}): give seconds since the epoch")

    @classmethod
    @renamed(content="output")
    def of(
        cls, result_id: str, status: CallStatus, output: JSONValue, settled_at: float | None = None
    ) -> ExternalResult:
        """Return the result with this output, or this reason why there is none; the inverse of `output_or_error`."""
        if status == "completed":
            return cls(result_id=result_id, output=output, settled_at=settled_at)
        return cls(result_id=result_id, error=str(output), status=status, settled_at=settled_at)

    @property
    def output_or_error(self) -> JSONValue:
        """The output, or the reason why there is none, as the model reads it."""
        return self.output if self.status == "completed" else self.error or f"The call was {self.status}."

    @property
    def digest(self) -> str:
        """Hash of the status and the output, by which repeated results are recognized.

        Raises:
            ConfigError: the output is not JSON.
        """
        from pellucid.approvals.numbers import canonical

        try:
            content = canonical([self.status, self.output_or_error])
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the output of ExternalResult {self.result_id!r} is not JSON: {error}") from error
        return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@renamed(deadline="expires_at")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRequest:
    """A call that waits for a result from outside.

    Attributes:
        result_id: Id of the call: `async_tool_` and a UUID.
        tool_name: Name of the tool.
        tool_call_id: Id of the tool call in the conversation.
        arguments: Arguments of the tool.
        dispatched_at: Time of the dispatch, in seconds since the epoch.
        expires_at: Time at which the call expires, in seconds since the epoch; None if it never does.
        takes_place: Whether the result takes the place of the call's result (`pending="wait"`); otherwise the model has
            read that the call is running, and gets the result later.
        trace: Context of the dispatching span, as W3C Trace Context headers.
        result: The result, once there is one; the run resumes when no call of its group lacks one.
        parts: Output of a call that ended in the background of its run, if it is content parts rather than JSON.
    """

    result_id: str
    tool_name: str
    tool_call_id: str
    arguments: JSONObject
    dispatched_at: float
    expires_at: float | None = None
    takes_place: bool = False
    trace: dict[str, str] = field(default_factory=dict)
    result: ExternalResult | None = None
    parts: list[JSONObject] = field(default_factory=list)

    @property
    def content_parts(self) -> tuple[Part, ...]:
        """The `parts`.

        Raises:
            ConfigError: they are damaged.
        """
        return tuple(load_part(part, f"parts[{n}] of {self.result_id!r}") for n, part in enumerate(self.parts))

    def expires(self, now: float) -> bool:
        """Return whether the call has expired, with the time in seconds since the epoch."""
        return self.result is None and self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCall:
    """A call that has its result, so that another one is late.

    Attributes:
        result_id: Id of the call.
        tool_name: Name of the tool.
        tool_call_id: Id of the tool call in the conversation.
        digest: Digest of the result.
        trace: Context of the dispatching span, as W3C Trace Context headers.
    """

    result_id: str
    tool_name: str
    tool_call_id: str
    digest: str
    trace: dict[str, str] = field(default_factory=dict)


def settle_results(
    requests: Sequence[ExternalRequest],
    results: Iterable[ExternalResult],
    now: float,
    ended: Mapping[str, EndedCall] = _NONE,
) -> tuple[list[ExternalResult], list[ExternalResult]]:
    """Return the results that settle calls, and those that come too late; calls past their deadline expire.

    A result that a call has already changes nothing. The results of calls in `ended`, by result id, come too late.

    Raises:
        CheckpointError: a result is for an unknown call, or differs from the one that the call has.
    """
    known = {request.result_id: request for request in requests}
    settled: dict[str, ExternalResult] = {}
    for request in requests:
        if (known_result := request.result or _expired(request, now)) is not None:
            settled[request.result_id] = known_result
    late: list[ExternalResult] = []
    for result in results:
        if result.result_id in ended and result.result_id not in known:
            if ended[result.result_id].digest != result.digest:
                late.append(result)
            continue
        if result.result_id not in known:
            raise CheckpointError(_unknown(result.result_id, known))
        first = settled.setdefault(result.result_id, result)
        if first.status == "expired" and result.status != "expired":
            late.append(result)
        elif first.digest != result.digest:
            raise CheckpointError(
                f"call {result.result_id!r} of tool {known[result.result_id].tool_name!r} has another result already, "
                f"which is kept"
            )
    return [result for result_id, result in settled.items() if known[result_id].result is None], late


def _expired(request: ExternalRequest, now: float) -> ExternalResult | None:
    """Return the result of a call that has expired."""
    if request.expires_at is None or not request.expires(now):
        return None
    error = expired_text(request.expires_at - request.dispatched_at)
    return ExternalResult(result_id=request.result_id, status="expired", error=error, settled_at=request.expires_at)


def expired_text(seconds: float) -> str:
    """Return what the model reads of a call that has expired."""
    return f"The call expired: there was no result within {seconds:.6g} s."


def _unknown(result_id: str, known: Mapping[str, ExternalRequest]) -> str:
    waiting = ", ".join(map(repr, known)) or "no result"
    return f"unknown result id {result_id!r}; this checkpoint is waiting for {waiting}"
