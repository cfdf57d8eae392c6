"""The errors of Pellucid.

```
PellucidError
├─ ConfigError                    a bad option; also a ValueError
│  ├─ CallbackRefused             a callback URL is not allowed
│  └─ StoreNeeded                 a run without a store cannot wait for the result of a tool; carries tool_name
├─ InvalidCallback                a callback is not signed by one of the keys, or not now; also a ValueError
├─ RunCancelled                   the run's CancelToken was cancelled
├─ RunTimeout                     the run passed `Limits.timeout`; also a TimeoutError
├─ DiscoveryError                 a tool provider failed; carries provider_id, error_kind, status, retry_after
│  ├─ DiscoveryTimeout            it did not respond in time; also a TimeoutError
│  ├─ DiscoveryBackoff            not called, because it failed recently; carries retry_after
│  └─ InvalidCatalog              it returned an invalid catalogue
├─ ToolNameCollision              two tools have the same name
├─ ModelError                     a model failed; carries model, error_kind, status, request_id, retry_after
│  ├─ ModelTimeout                it did not respond in time; also a TimeoutError
│  └─ OutputError                 its answer is not of the type given as `Agent(output=)`
├─ InstructionsError              a function of the instructions failed; carries function_name
├─ PolicyHalt                     the permission policy ended the run; carries tool_name, stage, reason
├─ ReliabilityFailFast            a reliability rule ended the run; carries kind, reason
├─ CheckpointError                the checkpoint or a decision is not valid; also a ValueError
│  └─ AlreadyResumed              the checkpoint was resumed before; carries checkpoint_id
├─ CircuitOpen                    a circuit breaker rejected a call; carries provider_id, retry_after;
│                                 of a provider also a DiscoveryError, of a model also a ModelError
├─ StoreError                     a store refused an operation, or a file is no store
│  ├─ StoreUnavailable            its database did not answer; carries is_outcome_unknown
│  ├─ Fenced                      the claim of a run was lost; carries run_id, fence, current_fence, status
│  ├─ IdempotencyConflict         the id or key belongs to another request; carries run_id, key
│  ├─ DuplicateKey                the run has that journal entry or call already; carries run_id, key
│  └─ UnknownRun                  there is no such run; carries run_id
├─ EventsExpired                  events of a durable run were deleted from a stream; carries run_id, after
├─ UnexpectedExit                 a cause of others: `SystemExit` or the like, raised where it would end an event loop
└─ ToolError                      a tool failed; tools raise it, the model gets its text; carries error_kind, status,
   │                              retry_after
   └─ PermissionDenied            the permission policy denied the tool; carries tool_name, reason
```

Each error that a run raises carries `messages`, `usage`, `run_id`, `trace_id` and `iterations` of the run.
The exception of the hub, model or tool itself is always the `__cause__`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict, Unpack

__all__ = [
    "AlreadyResumed",
    "CallbackRefused",
    "CheckpointError",
    "CircuitOpen",
    "ConfigError",
    "ConversationBusy",
    "DiscoveryBackoff",
    "DiscoveryCircuitOpen",
    "DiscoveryError",
    "DiscoveryTimeout",
    "DuplicateKey",
    "ErrorKind",
    "EventsExpired",
    "FailureDetails",
    "Fenced",
    "IdempotencyConflict",
    "InstructionsError",
    "InvalidCallback",
    "InvalidCatalog",
    "JournalError",
    "ModelCircuitOpen",
    "ModelError",
    "ModelTimeout",
    "OutputError",
    "PassLost",
    "PellucidError",
    "PermissionDenied",
    "PolicyHalt",
    "ReliabilityFailFast",
    "RunCancelled",
    "RunTimeout",
    "StoreError",
    "StoreNeeded",
    "StoreUnavailable",
    "ToolError",
    "ToolNameCollision",
    "UnexpectedExit",
    "UnknownConversation",
    "UnknownRun",
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
"""Vendor-neutral classification of a failure, on which reliability rules are based."""


class PellucidError(Exception):
    """Root of all errors.

    Each error that a run raises has the attributes of the run; another error has the defaults.

    Attributes:
        error_type: Value of `error.type` in telemetry, of low cardinality.
        messages: Conversation of the run until it failed, as `Message` objects: a `history` to continue from. A call
            that had no result yet has one that says so.
        usage: `Usage` of the run, as in its `RunResult`; None if no run raised the error.
        run_id: Id of the run.
        trace_id: Trace of the run, in 32 hexadecimal digits; all zero if nothing was traced.
        iterations: Passes of the loop, including the one that failed.
    """

    error_type: str = ""
    messages: tuple[Any, ...] = ()
    usage: Any = None
    run_id: str = ""
    trace_id: str = ""
    iterations: int = 0


class FailureDetails(TypedDict, total=False):
    """Details of the failure of a provider, model or tool."""

    error_kind: ErrorKind
    """Kind of the failure; if `unknown`, that of the cause applies."""

    status: int | None
    """HTTP status, if the server responded with an error."""

    retry_after: float | None
    """Seconds after which to try again, if the server sent them."""


class _Failure(PellucidError):
    """A failure with the attributes of `FailureDetails`."""

    error_kind: ErrorKind = "unknown"
    status: int | None = None
    retry_after: float | None = None

    def __init__(
        self,
        message: str,
        *,
        error_kind: ErrorKind = "unknown",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_kind = error_kind
        self.status = status
        self.retry_after = retry_after


class ConfigError(PellucidError, ValueError):
    """An option has an invalid value."""

    @classmethod
    def empty(cls, owner: str, name: str, remedy: str) -> ConfigError:
        """Return the error for an option that must not be empty."""
        return cls(f"{owner}: {name} must not be empty; {remedy}")


class CallbackRefused(ConfigError):
    """A callback URL is not one that the operator allows. The message does not have the URL, which may be secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the callback URL is refused: {reason}")


class StoreNeeded(ConfigError):
    """A run without a store has a tool whose work another process does. Nobody could wait for its result.

    Attributes:
        tool_name: Name of the tool.
    """

    error_type = "store_needed"

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"tool {tool_name!r} hands its work to another process, and a run without a store cannot wait for its "
            f"result; serve the agent with a store, or give the tool execution='same-invocation'"
        )
        self.tool_name = tool_name


class InvalidCallback(PellucidError, ValueError):
    """A callback is not signed by one of the keys of its receiver, or was not sent now."""


class RunCancelled(PellucidError):
    """The run was cancelled through its `CancelToken`.

    Attributes:
        reason: Reason given to `cancel()`.
    """

    def __init__(self, agent: str, reason: str | None = None) -> None:
        super().__init__(f"run of agent {agent!r} was cancelled{f': {reason}' if reason else ''}")
        self.reason = reason


class RunTimeout(PellucidError, TimeoutError):
    """The run passed `Limits.timeout`; the message names what was under way."""

    error_type = "timeout"


class DiscoveryError(_Failure):
    """A tool provider could not list its tools.

    Attributes:
        provider_id: Id of the provider.
        problem: Description of the failure.
        error_kind: Kind of the failure; if `unknown`, that of the cause applies.
        status: HTTP status, if the provider's server responded with an error.
        retry_after: Seconds after which to try again, if the provider sent them.
        joined: Whether another run made the round trip that failed and reports it too; this run only waited for it.
    """

    joined: bool = False

    def __init__(self, provider_id: str, problem: str, **details: Unpack[FailureDetails]) -> None:
        super().__init__(f"discovery of tools from provider {provider_id!r} failed: {problem}", **details)
        self.provider_id = provider_id
        self.problem = problem


class DiscoveryTimeout(DiscoveryError, TimeoutError):
    """A tool provider did not respond within its timeout."""

    error_type = "timeout"


class DiscoveryBackoff(DiscoveryError):
    """A tool provider failed recently, and is not called until its back-off has passed.

    Attributes:
        retry_after: Seconds until the provider is called again.
    """

    error_type = "backoff"
    retry_after: float

    def __init__(self, provider_id: str, retry_after: float, last: BaseException) -> None:
        super().__init__(
            provider_id,
            f"it failed recently ({type(last).__name__}: {last}); it will be called again in {retry_after:.1f} s",
            retry_after=retry_after,
        )


class InvalidCatalog(DiscoveryError):
    """A tool provider returned something that is not a list of valid tools with distinct names."""

    error_type = "invalid_catalog"


class ToolNameCollision(PellucidError):
    """Two tools have the same name.

    Attributes:
        tool_name: Name of both tools.
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


class ModelError(_Failure):
    """A model call failed.

    Attributes:
        model: Name of the model.
        error_kind: Kind of the failure.
        status: HTTP status, if there was a response.
        request_id: The vendor's id of the request, to quote in a support case.
        retry_after: Seconds after which to try again, if the vendor sent them.
    """

    request_id: str | None = None

    def __init__(
        self,
        model: str,
        message: str,
        *,
        error_type: str = "",
        request_id: str | None = None,
        **details: Unpack[FailureDetails],
    ) -> None:
        super().__init__(f"call of model {model!r} failed: {message}", **details)
        self.model = model
        self.error_type = error_type
        self.request_id = request_id


class ModelTimeout(ModelError, TimeoutError):
    """A model did not respond within `Limits.model_timeout`, or within the timeout of its adapter."""

    def __init__(
        self, model: str, message: str, *, request_id: str | None = None, **details: Unpack[FailureDetails]
    ) -> None:
        super().__init__(model, message, error_type="timeout", request_id=request_id, **details)
        self.error_kind = "timeout"


class OutputError(ModelError):
    """A model's answer is not of the type given as `Agent(output=)`.

    Attributes:
        text: The answer as received.
    """

    def __init__(self, model: str, message: str, *, text: str) -> None:
        super().__init__(model, message, error_type="invalid_output", error_kind="invalid_response")
        self.text = text


class InstructionsError(PellucidError):
    """A function of the option `instructions` failed.

    Attributes:
        function_name: Name of the function.
    """

    def __init__(self, function_name: str, problem: str) -> None:
        super().__init__(f"the function {function_name!r} of the instructions {problem}")
        self.function_name = function_name


class ReliabilityFailFast(PellucidError):
    """A reliability rule ended the run.

    Attributes:
        kind: `kind` of the rule.
        reason: Operation that the rule ended.
        cause: The failure that the rule applied to, if there was one; also the `__cause__`.
    """

    def __init__(self, kind: str, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{reason}{f': {cause}' if cause is not None else ''}")
        self.kind = kind
        self.reason = reason
        self.cause = cause
        self.error_type = "" if cause is not None else "reliability"
        self.__cause__ = cause


class CircuitOpen(PellucidError):
    """A circuit breaker rejected a call after repeated failures; nothing was called.

    Attributes:
        provider_id: The provider, model or tool.
        retry_after: Seconds until a probe is admitted.
    """

    error_type = "circuit_open"

    def __init__(self, provider_id: str, retry_after: float) -> None:
        PellucidError.__init__(  # not super(): in a subclass with two bases that is the other base
            self,
            f"{provider_id!r} is not called after repeated failures; the next probe is due in {retry_after:.1f} s",
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

    error_kind = "circuit_open"

    def __init__(self, model: str, retry_after: float) -> None:
        CircuitOpen.__init__(self, model, retry_after)
        self.model = model


class CheckpointError(PellucidError, ValueError):
    """The checkpoint is not valid, or a decision does not fit it. Nothing was run."""


class AlreadyResumed(CheckpointError):
    """The checkpoint was resumed before.

    Attributes:
        checkpoint_id: Id of the checkpoint.
    """

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id!r} was already resumed, and its tool calls run only once; "
            f"use the result of that run, or the checkpoint in it"
        )
        self.checkpoint_id = checkpoint_id


class StoreError(PellucidError):
    """A store of durable runs refused an operation, and nothing was written; or a file is no store that can be used."""

    error_type = "store_error"


class StoreUnavailable(StoreError):
    """The database of a store did not answer, and repeating the operation did not help.

    Attributes:
        is_outcome_unknown: Whether the operation may have been committed; otherwise nothing was written.
        reason: Reason, such as `has a full disk`.
    """

    error_type = "store_unavailable"

    def __init__(self, store: str, *, is_outcome_unknown: bool = False, reason: str = "is not available") -> None:
        outcome = "the operation may have been committed" if is_outcome_unknown else "nothing was written"
        super().__init__(f"store {store!r} {reason}; {outcome}")
        self.is_outcome_unknown, self.reason = is_outcome_unknown, reason


class Fenced(StoreError):
    """A worker's claim of a run was lost: its lease expired, its pass has ended, or the run was cancelled.

    The worker must stop: another one may be continuing the run.

    Attributes:
        run_id: The run.
        fence: Fence of the claim.
        current_fence: Fence of the run.
        status: Status of the run.
    """

    error_type = "fenced"

    def __init__(self, run_id: str, *, fence: int, current_fence: int, status: str) -> None:
        super().__init__(
            f"claim {fence} of run {run_id!r} was lost: the run is {status}, and its latest claim is {current_fence}; "
            f"nothing was written"
        )
        self.run_id = run_id
        self.fence = fence
        self.current_fence = current_fence
        self.status = status


class JournalError(PellucidError):
    """A step of a durable run was not written, and its pass has ended; the cause says why. Nobody else receives this.

    Attributes:
        is_fenced: Whether another worker may be continuing the run.
    """

    error_type = "journal_error"

    def __init__(self, step: str, *, is_fenced: bool) -> None:
        super().__init__(f"step {step!r} was not written to the journal; the pass has ended")
        self.is_fenced = is_fenced


class PassLost(PellucidError):
    """The process of a pass of a durable run ended before the pass did. Only telemetry has this error."""

    error_type = "lost"


class IdempotencyConflict(StoreError):
    """A run was submitted with an id or idempotency key of another agent or request.

    Attributes:
        run_id: The run that has the id or key.
        key: The idempotency key; None if the id is the same.
    """

    error_type = "idempotency_conflict"

    def __init__(self, run_id: str, key: str | None) -> None:
        subject = f"run id {run_id!r}" if key is None else f"idempotency key {key!r}"
        super().__init__(f"{subject} was used for another agent or request; submit this one with its own")
        self.run_id = run_id
        self.key = key


class ConversationBusy(StoreError):
    """A run was submitted to a conversation in which another run has not ended.

    Attributes:
        run_id: The run that has not ended.
    """

    error_type = "conversation_busy"

    def __init__(
        self,
        run_id: str,
        remedy: str = 'wait for it or cancel it, or let runs queue with DurableRuns(conversations="queue")',
    ) -> None:
        super().__init__(f"run {run_id!r} of this conversation has not ended; {remedy}")
        self.run_id = run_id


class UnknownConversation(StoreError):
    """A store has no conversation of that id, of that principal.

    Attributes:
        conversation_id: The id.
    """

    error_type = "unknown_conversation"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"there is no conversation {conversation_id!r} of this principal; submit a run to it first")
        self.conversation_id = conversation_id


class DuplicateKey(StoreError):
    """A journal entry or a call was written twice.

    Attributes:
        run_id: The run.
        key: Key of the journal entry, or id of the call.
    """

    error_type = "duplicate_key"

    def __init__(self, run_id: str, key: str) -> None:
        super().__init__(f"{key!r} was written before; run {run_id!r} did not write it again")
        self.run_id = run_id
        self.key = key


class UnknownRun(StoreError):
    """A store has no run of that id.

    Attributes:
        run_id: The id.
    """

    error_type = "unknown_run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")
        self.run_id = run_id


class EventsExpired(PellucidError):
    """Events of a durable run were deleted from a stream before they were read; the store still has them.

    Attributes:
        run_id: Id of the run.
        after: Sequence number of the last event that was read.
    """

    def __init__(self, run_id: str, after: int) -> None:
        super().__init__(
            f"events of run {run_id!r} after {after} were deleted by the limits of the stream; read them from the "
            f"store with DurableRuns.events, or from a server"
        )
        self.run_id = run_id
        self.after = after


class ToolError(_Failure):
    """A tool failed. Raise it in a tool to choose the text that the model reads; the text is passed on unchanged.

    Attributes:
        error_type: `error.type` of the tool's span, `tool_error` unless given.
        error_kind: Kind of the failure for reliability rules; if `unknown`, `error_type` determines it.
        status: HTTP status, if the tool's server responded with an error.
        retry_after: Seconds after which the tool may be called again, if its server sent them.
    """

    def __init__(self, message: str, *, error_type: str = "tool_error", **details: Unpack[FailureDetails]) -> None:
        super().__init__(message, **details)
        self.error_type = error_type


class UnexpectedExit(PellucidError):
    """Application code raised `SystemExit` or another `BaseException`; that exception is the `__cause__`."""


class PermissionDenied(ToolError):
    """The permission policy denied a tool call.

    Attributes:
        tool_name: Name of the tool.
        reason: Reason given by the policy.
    """

    def __init__(self, tool_name: str, reason: str) -> None:
        super().__init__(
            f"Permission denied: tool {tool_name!r} was not run: {reason}. Do not call it again; continue without it.",
            error_type="permission_denied",
        )
        self.tool_name = tool_name
        self.reason = reason


class PolicyHalt(PellucidError):
    """The permission policy ended the run.

    Attributes:
        tool_name: Name of the tool that the decision was about.
        stage: `offer`, `activation` or `dispatch`.
        reason: Reason given by the policy.
    """

    error_type = "policy_halt"

    def __init__(self, tool_name: str, stage: str, reason: str) -> None:
        super().__init__(
            f"the permission policy ended the run at tool {tool_name!r} ({stage}): {reason}; "
            f"the conversation so far is in `messages` of this error"
        )
        self.tool_name = tool_name
        self.stage = stage
        self.reason = reason
