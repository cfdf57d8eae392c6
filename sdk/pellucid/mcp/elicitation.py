"""Questions of an MCP server to a person, and who answers them: a function, or the one who resumes the run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypedDict

import anyio
from mcp import Client, MCPError
from mcp_types import (
    INTERNAL_ERROR,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ElicitationRequiredErrorData,
    ElicitRequest,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    InputResponses,
)
from opentelemetry import trace
from opentelemetry.trace import Span
from pydantic import ValidationError
from typing_extensions import override

from pellucid.approvals.elicitation import LISTENING, Elicitation, InputRequired, Listening
from pellucid.context import Identity
from pellucid.errors import ConfigError, ToolError
from pellucid.failures import describe
from pellucid.mcp.exchange import Asking, Exchange, Refused
from pellucid.semconv.elicitation import ELICITATION_ACTION, ELICITATION_ANSWERED, ELICITATION_MODE
from pellucid.text import excerpt
from pellucid.tools.answers import issues_of
from pellucid.tools.schema import Validator
from pellucid.types import JSONObject

Reply: TypeAlias = JSONObject | bool | None
"""Values of a form; True to accept; None or False to decline."""

Elicit: TypeAlias = Literal["pause"] | Callable[[Elicitation], Reply | Awaitable[Reply]]
"""The option `elicitation` of `MCPProvider`."""

MAX_ROUNDS: Final = 10
"""Times that a server may ask a function, or for more time, before its answer to one call."""

POLL: Final = 0.1
"""Seconds to wait for a server that asks for more time."""

_logger: Final = logging.getLogger("pellucid.mcp")


class Answers(TypedDict, total=False):
    """Arguments of a call that goes on after its questions, as the MCP SDK names them."""

    input_responses: InputResponses | None
    request_state: str | None


class Asked(CallToolResult):
    """Stands for the result of a call that needs input first."""

    asked: InputRequiredResult


class AskingClient(Client):
    """A client that leaves it to its caller what answers a server's questions."""

    @override
    async def _drive_input_required(self, first: Any, retry: Any) -> Any:
        return Asked(content=[], asked=first) if isinstance(first, InputRequiredResult) else first


class Elicitor:
    """Answers the questions of one provider's server, or asks a run to pause for them.

    Raises:
        ConfigError: the option is neither `pause` nor a function.
    """

    def __init__(self, provider_id: str, option: Elicit) -> None:
        if option != "pause" and not callable(option):
            raise ConfigError(
                f"MCPProvider {provider_id!r}: elicitation={excerpt(repr(option))}; give 'pause', or a function of an "
                "Elicitation that returns the values of the form, True or None"
            )
        self._id = provider_id
        self._function = option if callable(option) else None

    async def ask(
        self, call: Callable[[Answers], Awaitable[CallToolResult]], identity: Identity | None
    ) -> CallToolResult:
        """Make a call, again with answers as long as the server asks; return its result.

        Raises:
            InputRequired: the run has to pause for an answer.
            ToolError: the server asks for what nobody answers, or again and again; or the function failed.
        """
        listening = LISTENING.get()
        answers = _given(listening)
        for _ in range(MAX_ROUNDS):
            try:
                result = await call(answers)
            except Refused as refused:
                answers = await self._answer(_required(refused), identity, listening)
                continue
            if not isinstance(result, Asked):
                return result
            answers = await self._answer(result.asked, identity, listening)
        problem = f"MCP server {self._id!r} asked {MAX_ROUNDS} times for more before it answered the call"
        raise ToolError(problem, error_type="elicitation_rounds")

    def sent(self, answers: Answers, *, is_modern: bool) -> Answers:
        """Return the answers to send with a call: none to a server that only wants addresses to have been opened.

        Raises:
            ToolError: a person did not agree to open one.
        """
        if is_modern or not answers:
            return answers
        if any(getattr(each, "action", None) != "accept" for each in (answers.get("input_responses") or {}).values()):
            raise ToolError(
                f"MCP server {self._id!r} needs a person to open an address first, and nobody did. Do not retry unless "
                "asked to.",
                error_type="elicitation_declined",
            )
        return {}

    async def respond(self, params: ElicitRequestParams, asking: Sequence[Asking]) -> ElicitResult | ErrorData:
        """Answer a question of a server that holds a call open, which is one of these."""
        if not asking:
            return ElicitResult(action="cancel")
        first = asking[0]
        identity = first.identity if all(each.identity == first.identity for each in asking) else None
        is_durable = any(each.listening is not None and each.listening.is_durable for each in asking)
        span = first.span if len(asking) == 1 else trace.INVALID_SPAN
        if self._function is None or is_durable:
            return _recorded(span, params.mode, ElicitResult(action="decline"))
        try:
            return _recorded(span, params.mode, await self._reply(self._question(params, identity)))
        except ToolError as error:
            _logger.warning("%s", error)
            return ErrorData(code=INTERNAL_ERROR, message="the client could not ask")

    async def _answer(
        self, asked: InputRequiredResult, identity: Identity | None, listening: Listening | None
    ) -> Answers:
        if not asked.input_requests:  # the server needs more time
            await anyio.sleep(POLL)
            return {"request_state": asked.request_state}
        questions: dict[str, Elicitation] = {}
        for key, request in asked.input_requests.items():
            if not isinstance(request, ElicitRequest):
                self._refuse(request.method)
            questions[key] = self._question(request.params, identity)
        is_durable = listening is not None and listening.is_durable
        if listening is not None and listening.can_pause and (self._function is None or is_durable):
            raise InputRequired(questions, asked.request_state)
        span, results = trace.get_current_span(), {}
        for key, question in questions.items():
            may_ask = self._function is not None and not is_durable
            result = await self._reply(question) if may_ask else ElicitResult(action="decline")
            results[key] = _recorded(span, question.mode, result)
        return {"input_responses": dict(results), "request_state": asked.request_state}

    def _refuse(self, method: str) -> NoReturn:
        raise ToolError(
            f"MCP server {self._id!r} asked for {method}, which is not supported, before it would answer the call",
            error_type="unsupported_request",
        )

    def _question(self, params: ElicitRequestParams, identity: Identity | None) -> Elicitation:
        if isinstance(params, ElicitRequestURLParams):
            return Elicitation(
                provider_id=self._id, mode="url", message=params.message, url=params.url, identity=identity
            )
        schema = params.requested_schema
        try:
            Validator(schema)
        except ValueError as error:
            raise ToolError(
                f"MCP server {self._id!r} asked for input with an invalid schema: {error}",
                error_type="invalid_elicitation",
            ) from error
        return Elicitation(provider_id=self._id, mode="form", message=params.message, schema=schema, identity=identity)

    async def _reply(self, question: Elicitation) -> ElicitResult:
        """Return the reply of the function.

        Raises:
            ToolError: it failed, or its values do not fit the schema.
        """
        assert self._function is not None
        try:
            reply = self._function(question)
            reply = await reply if isawaitable(reply) else reply
        except Exception as error:
            problem = f"the function that answers questions of MCP server {self._id!r} failed: {describe(error)}"
            raise ToolError(problem, error_type="elicitation_failed") from error
        if reply is None or reply is False:
            return ElicitResult(action="decline")
        if question.schema is None:
            return ElicitResult(action="accept")
        content: dict[str, Any] = dict(reply) if isinstance(reply, Mapping) else {}
        if issues := issues_of(question.schema, content):
            problem = (
                f"the answer to a question of MCP server {self._id!r} does not fit its schema: {'; '.join(issues)}"
            )
            raise ToolError(problem, error_type="elicitation_failed")
        return ElicitResult(action="accept", content=content)


class Questions:
    """Questions for which a server holds calls open; one ends when all calls have that it may belong to.

    Args:
        elicitor: Answers them.
    """

    def __init__(self, elicitor: Elicitor) -> None:
        self._elicitor = elicitor
        self._open: dict[anyio.CancelScope, set[Exchange]] = {}

    async def answer(self, params: ElicitRequestParams, active: Iterable[Exchange]) -> ElicitResult | ErrorData:
        """Answer a question of a server that works on these requests."""
        asking = {each: each.asking for each in active if each.asking is not None}
        with anyio.CancelScope() as scope:
            self._open[scope] = set(asking)
            try:
                return await self._elicitor.respond(params, list(asking.values()))
            finally:
                del self._open[scope]
        return ElicitResult(action="cancel")

    def release(self, exchange: Exchange) -> None:
        """End the questions that no other request than this one may have."""
        for scope, calls in self._open.items():
            calls.discard(exchange)
            if not calls:
                scope.cancel()


def _required(refused: Refused) -> InputRequiredResult:
    """Return the addresses that a person must open, if a server of protocol 2025-11-25 refused a call for them.

    Raises:
        Refused: it refused the call for another reason.
    """
    cause = refused.__cause__
    if refused.code != URL_ELICITATION_REQUIRED or not isinstance(cause, MCPError):
        raise refused
    try:
        required = ElicitationRequiredErrorData.model_validate(cause.error.data)
    except ValidationError:
        raise refused from cause
    requests = {params.elicitation_id or params.url: ElicitRequest(params=params) for params in required.elicitations}
    if not requests:
        raise refused
    return InputRequiredResult(input_requests=dict(requests))


def _given(listening: Listening | None) -> Answers:
    """Return the answers that were given while the run was paused."""
    if listening is None or not (listening.answers or listening.state is not None):
        return {}
    span, results = trace.get_current_span(), {}
    for key, answer in listening.answers.items():
        results[key] = _recorded(span, listening.modes[key], ElicitResult.model_validate(answer))
    return {"input_responses": dict(results), "request_state": listening.state}


def _recorded(span: Span, mode: str, result: ElicitResult) -> ElicitResult:
    if span.is_recording():
        attributes = {ELICITATION_MODE: mode, ELICITATION_ACTION: result.action}
        span.add_event(ELICITATION_ANSWERED, attributes)
    return result
