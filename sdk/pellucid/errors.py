"""Everything Pellucid raises.

```
PellucidError
├─ ConfigError                    a bad option; also a ValueError
├─ RunCancelled                   the run's CancelToken was cancelled
├─ RunTimeout                     the run passed its deadline; also a TimeoutError
├─ DiscoveryError                 a tool provider failed; carries provider_id, error_kind, status, retry_after
│  ├─ DiscoveryTimeout            it did not answer in time; also a TimeoutError
│  ├─ DiscoveryBackoff            not asked, because it failed a moment ago; carries retry_after
│  └─ InvalidCatalog              it answered something that is not a catalogue
├─ ToolNameCollision              two tools have one name
├─ ModelError                     a model failed; carries model, error_kind, status, request_id, retry_after
│  ├─ ModelTimeout                it did not answer in time; also a TimeoutError
│  └─ OutputError                 its answer is not of the type that `Agent(output=)` asks for
├─ PolicyHalt                     the permission policy ended the run; carries tool_name, stage, reason, messages
├─ ReliabilityFailFast            a reliability rule ended the run; carries kind, reason
├─ CheckpointError                a run cannot be resumed from this, or not with these decisions; also a ValueError
│  └─ AlreadyResumed              it was resumed before; carries checkpoint_id
├─ CircuitOpen                    a circuit breaker did not let a call through; carries provider_id, retry_after;
│                                 of a provider also a DiscoveryError, of a model also a ModelError
├─ UnexpectedExit                 a cause of others: `SystemExit` or the like, raised where it would end an event loop
└─ ToolError                      a tool failed; tools raise it, the model gets its text; carries error_kind, status,
   │                              retry_after
   └─ PermissionDenied            the permission policy does not let it be called; carries tool_name, reason
```

The fault of the hub, model or tool itself is always the `__cause__`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

__all__ = [
    "AlreadyResumed",
    "CheckpointError",
    "CircuitOpen",
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
    "PermissionDenied",
    "PolicyHalt",
    "ReliabilityFailFast",
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
    """Root of all errors.

    Attributes:
        error_type: The value of `error.type` in telemetry, of low cardinality.
    """

    error_type: str = ""


class ConfigError(PellucidError, ValueError):
    """An option has a value that cannot work."""

    @classmethod
    def empty(cls, owner: str, name: str, remedy: str) -> ConfigError:
        """Return the error of an option that must not be empty."""
        return cls(f"{owner}: {name} must not be empty; {remedy}")


class RunCancelled(PellucidError):
    """The run was cancelled through its `CancelToken`.

    Attributes:
        reason: What `cancel()` was given.
    """

    def __init__(self, agent: str, reason: str | None = None) -> None:
        super().__init__(f"run of agent {agent!r} was cancelled{f': {reason}' if reason else ''}")
        self.reason = reason


class RunTimeout(PellucidError, TimeoutError):
    """The run passed `Limits.deadline`."""

    error_type = "timeout"


class DiscoveryError(PellucidError):
    """A tool provider could not list its tools.

    Attributes:
        provider_id: Of the provider.
        problem: What was wrong.
        error_kind: What the failure means; `unknown` leaves it to the cause.
        status: HTTP status, if the provider's server answered one that means an error.
        retry_after: Seconds after which the provider wants to be asked again, if it said so.
        joined: Whether another run made the round trip that failed, and is told of it, too; this one only waited.
    """

    error_kind: ErrorKind = "unknown"
    status: int | None = None
    retry_after: float | None = None
    joined: bool = False

    def __init__(
        self,
        provider_id: str,
        problem: str,
        *,
        error_kind: ErrorKind = "unknown",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"discovery of tools from provider {provider_id!r} failed: {problem}")
        self.provider_id = provider_id
        self.problem = problem
        self.error_kind = error_kind
        self.status = status
        self.retry_after = retry_after


class DiscoveryTimeout(DiscoveryError, TimeoutError):
    """A tool provider did not answer within its timeout."""

    error_type = "timeout"


class DiscoveryBackoff(DiscoveryError):
    """A tool provider failed a moment ago and is left alone.

    Attributes:
        retry_after: Seconds until it is asked again.
    """

    error_type = "backoff"
    retry_after: float

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
    """Two tools have one name.

    Attributes:
        tool_name: Name of both.
        first, second: Ids of their providers, or their sources.
    """

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
    """A model's answer is not of the type that `Agent(output=)` asks for.

    Attributes:
        text: The answer as it came.
    """

    def __init__(self, model: str, message: str, *, text: str) -> None:
        super().__init__(model, message, error_type="invalid_output", error_kind="invalid_response")
        self.text = text


class ReliabilityFailFast(PellucidError):
    """A reliability rule ended the run.

    Attributes:
        kind: The rule's.
        reason: What it ended.
        cause: What had failed, if anything had; also the `__cause__`.
    """

    def __init__(self, kind: str, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{reason}{f': {cause}' if cause is not None else ''}")
        self.kind = kind
        self.reason = reason
        self.cause = cause
        self.error_type = "" if cause is not None else "reliability"
        self.__cause__ = cause


class CircuitOpen(PellucidError):
    """A circuit breaker did not let a call through, because it failed again and again; nothing was called.

    Attributes:
        provider_id: The provider, model or tool.
        retry_after: Seconds until somebody may try.
    """

    error_type = "circuit_open"

    def __init__(self, provider_id: str, retry_after: float) -> None:
        PellucidError.__init__(  # not the next of a subclass with two bases
            self,
            f"{provider_id!r} is not called, because it failed again and again; a try is due in {retry_after:.1f} s",
        )
        self.provider_id = provider_id
        self.retry_after: float | None = retry_after


class DiscoveryCircuitOpen(CircuitOpen, DiscoveryError):
    """The circuit of a tool provider is open."""

    def __init__(self, provider_id: str, retry_after: float) -> None:
        CircuitOpen.__init__(self, provider_id, retry_after)
        self.problem = str(self)


class ModelCircuitOpen(CircuitOpen, ModelError):
    """The circuit of a model is open."""

    def __init__(self, model: str, retry_after: float) -> None:
        CircuitOpen.__init__(self, model, retry_after)
        self.model = model
        self.error_type = "circuit_open"
        self.error_kind = "circuit_open"
        self.status = self.request_id = None


class CheckpointError(PellucidError, ValueError):
    """A run cannot be resumed from this checkpoint, or not with these decisions. Nothing was run."""


class AlreadyResumed(CheckpointError):
    """A run was resumed from this checkpoint before.

    Attributes:
        checkpoint_id: Id of the checkpoint.
    """

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id!r} was resumed before, and its tool calls are made once; "
            f"go on with the result of that run, or with the checkpoint that came of it"
        )
        self.checkpoint_id = checkpoint_id


class ToolError(PellucidError):
    """A tool failed. Raise it in a tool to choose what the model reads; the text is passed on as it is.

    Attributes:
        error_type: `error.type` of the tool's span, `tool_error` unless given.
        error_kind: What the failure means to reliability rules; `unknown` leaves it to `error_type`.
        status: HTTP status, if the tool's server answered one that means an error.
        retry_after: Seconds after which the tool may be called again, if its server said so.
    """

    def __init__(
        self,
        message: str,
        *,
        error_type: str = "tool_error",
        error_kind: ErrorKind = "unknown",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.error_kind = error_kind
        self.status = status
        self.retry_after = retry_after


class UnexpectedExit(PellucidError):
    """Code raised `SystemExit`, or another exception that is no `Exception`; that one is the `__cause__`."""


class PermissionDenied(ToolError):
    """The permission policy does not let a tool be called.

    Attributes:
        tool_name: Name of the tool.
        reason: What the policy said.
    """

    def __init__(self, tool_name: str, reason: str) -> None:
        super().__init__(
            f"Permission denied: tool {tool_name!r} was not run: {reason}. Do not call it again; go on without it.",
            error_type="permission_denied",
        )
        self.tool_name = tool_name
        self.reason = reason


class PolicyHalt(PellucidError):
    """The permission policy ended the run.

    Attributes:
        tool_name: The tool that it was asked about.
        stage: `offer`, `activation` or `dispatch`.
        reason: What the policy said.
        messages: The conversation so far, with a result for every call in it.
    """

    error_type = "policy_halt"

    def __init__(self, tool_name: str, stage: str, reason: str) -> None:
        super().__init__(
            f"the permission policy ended the run when it was asked about tool {tool_name!r} ({stage}): {reason}; "
            f"`messages` of this error is the conversation so far"
        )
        self.tool_name = tool_name
        self.stage = stage
        self.reason = reason
        self.messages: tuple[Any, ...] = ()
