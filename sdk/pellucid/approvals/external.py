"""Calls whose work is done outside of the process, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError
from pellucid.messages import Part, load_part
from pellucid.module_names import renamed
from pellucid.text import excerpt
from pellucid.types import JSONObject, JSONValue

MAX_TIME: Final = 1e11
"""Maximum number of seconds since the epoch, which also rules out infinity and NaN."""

STORED_KEYS: Final = {"expires_at": "deadline"}
"""Names that fields of `ExternalRequest` have in checkpoints and journals, where they differ."""

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
        ConfigError: the status does not fit the output and the error, one has another type, or the time is out of
            range.
    """

    result_id: str
    output: JSONValue = None
    error: str | None = None
    status: CallStatus | None = None
    settled_at: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("result_id", self.result_id), ("error", self.error or "")):
            if not isinstance(value, str):
                raise ConfigError(f"ExternalResult({name}={excerpt(repr(value))}) of {self.result_id!r}: give a text")
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
