"""Phase 3: call the model, whole or streamed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import format_span_id
from pydantic_core import to_json

from pellucid import semconv
from pellucid.concurrency.race import OutOfTime, race
from pellucid.errors import ConfigError, ModelError, ModelTimeout
from pellucid.failures import contained, error_type_of
from pellucid.messages import Message, Part, ReasoningPart, TextPart, ToolCall, Usage
from pellucid.models import ModelDelta, ModelRequest, ModelResponse
from pellucid.models.alternatives import as_model_error, falls_back, last_of
from pellucid.models.facts import ModelFacts
from pellucid.models.response_check import check_response
from pellucid.run.model_stream import Chunks, read_stream
from pellucid.run.rules import gate_of
from pellucid.run.state import Run
from pellucid.run.structured_output import prompted
from pellucid.run.token_metrics import count_failed, count_tokens
from pellucid.telemetry import INFERENCE, Boundary, boundary, once
from pellucid.tools.catalog import Catalog

if TYPE_CHECKING:
    from pellucid.reliability import Gate, Reaction, Reliability, Situation, Subject

MOST_TOKENS: Final = 2**53 - 1
"""Maximum number of tokens of one kind that a model call may report; more is unknown. Sums of calls fit in 64 bits."""

_NO_NUMBERS: Final = re.compile(rb"[:,\[]-?(?:NaN|Infinity)")
_TOKENS: Final = tuple(field.name for field in fields(Usage) if field.name.endswith("_tokens"))
_counts: Final = attrgetter(*_TOKENS)


async def infer(run: Run, request: ModelRequest, catalog: Catalog, *, is_closing: bool = False) -> ModelResponse:
    """Return the model's response, in which every tool call has an id; `is_closing` if it is the closing answer.

    The models of a `FallbackModel` are called in turn; each attempt has a `chat` span. Where no reliability rule
    matches, a `FallbackModel` falls back as without rules.

    Raises:
        ModelError: the model failed; its own exception is the cause. With several models, the error of the last one
            has notes about the others.
        BudgetReached: the call does not fit into what the run may spend.
    """
    inference = (run.nesting.inference or Inference)(run, request, catalog, list(run.setup.models), is_closing)
    if run.setup.reliability is not None:
        return await inference.guarded(run.setup.reliability)
    while True:
        try:
            return await inference.attempt()
        except ModelError as error:
            if not inference.falls_back(error):
                raise


@dataclass(slots=True)
class Inference:
    """Attempts to get an answer to one request.

    Attributes:
        models: The model to call, and those to fall back to.
        is_closing: Whether it is the closing answer of the run.
        gate: Gate of the reliability rules, if the agent has any.
        failures: Failures so far.
        partial: Pieces of the answer of this attempt.
        attempts: Attempts so far.
        is_streamed: Whether the answer of this attempt is streamed.
    """

    run: Run
    request: ModelRequest
    catalog: Catalog
    models: list[ModelFacts]
    is_closing: bool = False
    gate: Gate | None = None
    failures: list[ModelError] = field(default_factory=list)
    partial: list[ModelDelta] = field(default_factory=list)
    attempts: int = 0
    is_streamed: bool = False

    @property
    def is_seen(self) -> bool:
        """True if the reader of the stream has received pieces, which another answer cannot follow.

        Readers of a durable run can tell the attempts apart.
        """
        return bool(self.partial) and self.run.caller.stream is not None

    async def guarded(self, reliability: Reliability) -> ModelResponse:
        """Make attempts under the reliability rules."""
        self.gate = gate = gate_of(self.run, reliability, _subject(self.models[0]), self._obstacle)
        return await gate.run(
            self.attempt, fall_back=self._fall_back, next_model=self._next_model, continues=self.falls_back
        )

    def _obstacle(self, reaction: Reaction, error: BaseException | None) -> str | None:
        if self.is_seen:
            return "mid_stream"
        return "no_other" if reaction.then == "retry_other" and len(self.models) == 1 else None

    async def _fall_back(self, reaction: Reaction, situation: Situation) -> ModelResponse:
        """Return the value of a fallback as a response, also if it is a text or a message."""
        value = await reaction.result(situation)
        if isinstance(value, str):
            value = Message("assistant", value)
        if isinstance(value, Message):
            value = ModelResponse(message=value, finish_reason="tool_call" if value.tool_calls else "stop")
        return _checked(self.run, self.models[0], value)

    def _next_model(self) -> bool:
        if len(self.models) == 1:
            return False
        self.models.pop(0)
        if self.gate is not None:
            self.gate.subject = _subject(self.models[0])
        return True

    def falls_back(self, error: Exception) -> bool:
        """Switch to the next model of a `FallbackModel` after an error; return whether there is one."""
        if not isinstance(error, ModelError) or self.is_seen or self.run.stop_cause():
            return False
        return falls_back(self.run.setup.model, error) and self._next_model()

    async def attempt(self) -> ModelResponse:
        """Call the model once, within a boundary."""
        self.attempts += 1
        self.partial.clear()
        run, live = self.run, self.run.caller.live
        self.is_streamed = run.caller.stream is not None or (live is not None and live.is_wanted())
        try:
            return await self._observed(self.models[0])
        except ModelError as error:
            self.failures.append(error)
            last_of(self.failures)
            raise

    async def _observed(self, model: ModelFacts) -> ModelResponse:
        run, gate = self.run, self.gate
        request = self.request if model.native_output else prompted(self.request)
        notes = {"attempt": self.attempts, "stream": self.is_streamed or None, **model.notes, **request.settings}
        notes |= {"conversation_id": run.caller.conversation_id, "output_type": "json" if request.output else None}
        with boundary(run.scope, INFERENCE, model.name, **notes) as b:
            run.tally.model_calls += 1
            b.note(finish_reasons=("error",))  # replaced by the response's
            forget = run.scope.capturer.mark() if b.records else None
            _record_request(run, b, request, self.catalog)
            try:
                with gate.admitted() if gate is not None else nullcontext():
                    response = await self._answer(b, model, request)
            except BaseException as error:
                if forget is not None:
                    forget()  # so that the next attempt records its whole input
                if isinstance(error, Exception):
                    count_failed(run.scope, b, _labels(model), error_type_of(error))
                if self.partial:
                    b.capture_output(lambda capturer: capturer.answer(_unfinished(self.partial), "error"))
                if gate is not None and isinstance(error, Exception) and not isinstance(error, ConfigError):
                    gate.judge(b.span, error=error)
                raise
            response = _priced(run, model, response)
            run.tally.usage += response.usage
            run.conversation.answered_by = model.name
            _record_response(run, b, model, response)
            if gate is not None:
                gate.judge(b.span, response=response)
            return response

    async def _answer(self, b: Boundary, model: ModelFacts, request: ModelRequest) -> ModelResponse:
        run, timeout = self.run, self.run.limits.model_timeout
        try:
            if self.is_streamed:
                return await self._streamed(b, model, request)
            generate = model.model.generate
            return _checked(run, model, await race(generate, request, within=timeout, token=run.token, at_once=True))
        except (ModelError, ConfigError):  # a configuration error fails every attempt
            raise
        except OutOfTime:
            problem = f"no answer within {timeout:g} s; raise Limits.model_timeout if that is normal"
            raise ModelTimeout(model.name, problem) from None
        except Exception as error:
            raise as_model_error(model.model, error) from error

    async def _streamed(self, b: Boundary, model: ModelFacts, request: ModelRequest) -> ModelResponse:
        run, chunks = self.run, Chunks(self.run, b, self.partial)
        live = run.caller.live
        send = live.sender(run.scope.iteration, self.attempts, is_closing=self.is_closing) if live else None
        response_model: str | None = None
        run.scope.open[chunks] = lambda: chunks.count(_labels(model))  # if the run is abandoned
        timeout = run.limits.model_timeout
        try:
            item = await race(read_stream, run, b, model.model, request, self.partial, chunks, send, within=timeout)
            response = _checked(run, model, item, is_streamed=True)
            response_model = response.model
            return response
        finally:
            run.scope.open.pop(chunks, None)
            chunks.count(_labels(model, response_model))


def _subject(model: ModelFacts) -> Subject:
    from pellucid.reliability import Subject

    return Subject("inference", model.name, (model.provider_name, model.server_address, model.server_port))


def _priced(run: Run, model: ModelFacts, response: ModelResponse) -> ModelResponse:
    """Return the response with its cost, unless the vendor gave one or the price is unknown."""
    usage = response.usage
    if usage.cost is not None:
        return response
    try:
        cost = run.setup.prices(model.provider_name, response.model or model.name, usage, model.name)
        return response if cost is None else replace(response, usage=replace(usage, cost=_dollars(cost)))
    except BaseException as error:  # noqa: BLE001  (price tables are the application's)
        run.scope.fault("prices", contained(error))
        return response


def _dollars(cost: object) -> float:
    """Return a cost as a number of US dollars.

    Raises:
        ValueError: it is not a finite, non-negative number, and would spoil the sum.
    """
    if isinstance(cost, bool) or not isinstance(cost, int | float | Decimal) or not 0 <= cost < math.inf:
        raise ValueError(f"prices returned {cost!r}, which is not a dollar amount")
    return float(cost)


def _checked(run: Run, model: ModelFacts, answer: object, *, is_streamed: bool = False) -> ModelResponse:
    """Check what a model returned, and assign an id to every tool call without one."""
    response = _with_known_usage(_with_one_reason(check_response(model.name, answer, is_streamed=is_streamed)))
    if all(call.id and _is_json(call.arguments) for call in response.message.tool_calls):
        return response
    message = response.message
    prefix = f"call_{run.scope.run_id[:8]}_{run.scope.iteration}_"
    parts = tuple(_storable(part, f"{prefix}{index}") for index, part in enumerate(message.parts))
    return replace(response, message=replace(message, parts=parts))


def _storable(part: Part, call_id: str) -> Part:
    """Return a tool call with an id, and with arguments as text if JSON does not have them."""
    if not isinstance(part, ToolCall):
        return part
    is_json = _is_json(part.arguments)
    return replace(part, id=part.id or call_id, arguments=part.arguments if is_json else json.dumps(part.arguments))


def _is_json(arguments: object) -> bool:
    """Return whether arguments have no NaN and no infinity; reading them finds what else is wrong."""
    try:
        return not _NO_NUMBERS.search(to_json(arguments, inf_nan_mode="constants"))
    except (ValueError, RecursionError):
        return True


def _with_one_reason(response: ModelResponse) -> ModelResponse:
    """Return the response with one finish reason: where it has the default one, that of its message."""
    if response.message.finish_reason in (None, response.finish_reason):
        return response
    message, reason = response.message, response.finish_reason
    if reason == "stop":
        return replace(response, finish_reason=response.message.finish_reason)
    return replace(response, message=replace(message, finish_reason=reason))


def _with_known_usage(response: ModelResponse) -> ModelResponse:
    """Return the response with unknown counts in place of impossible ones, which no exporter can encode or add up."""
    known = [*filter(None, (*_counts(response.usage), *response.usage.by_modality.values()))]
    return response if not known or (min(known) >= 0 and max(known) <= MOST_TOKENS) else _repaired(response)


def _repaired(response: ModelResponse) -> ModelResponse:
    impossible = {name: None for name in _TOKENS if _is_impossible(getattr(response.usage, name))}
    by_modality = {name: count for name, count in response.usage.by_modality.items() if not _is_impossible(count)}
    return replace(response, usage=replace(response.usage, **impossible, by_modality=by_modality))


def _is_impossible(count: int | None) -> bool:
    return count is not None and not 0 <= count <= MOST_TOKENS


def _record_request(run: Run, b: Boundary, request: ModelRequest, catalog: Catalog) -> None:
    """Record the new parts of the request in full, and the rest as digests."""
    if request.tools:
        b.note(catalog_digest=catalog.digest)
    if not b.records:
        return
    span_id = format_span_id(b.span.get_span_context().span_id)
    b.capture_input(lambda capturer: capturer.new_messages(request.messages, span_id))
    if request.instructions:
        parts = [TextPart(request.instructions).to_dict()]
        b.content(semconv.SYSTEM_INSTRUCTIONS, request.instructions, lambda capturer: capturer.value(parts))
    if request.tools:
        record = once(catalog.captured, lambda capturer: capturer.definitions(request.tools))
        b.content(semconv.TOOL_DEFINITIONS, catalog.digest, record)


def _record_response(run: Run, b: Boundary, model: ModelFacts, response: ModelResponse) -> None:
    usage, share = response.usage, _cached_share(response.usage)
    notes = {"response_id": response.id, "response_model": response.model, "finish_reason": response.finish_reason}
    notes |= dict(zip(_TOKENS, _counts(usage), strict=True))
    b.note(finish_reasons=(response.finish_reason,), usage=usage, cached_share=share, cost=usage.cost, **notes)
    if response.attributes:
        b.attributes(response.attributes)
    if usage.by_modality:
        b.attributes({f"gen_ai.usage.{name}": count for name, count in usage.by_modality.items()})
    b.capture_output(lambda capturer: capturer.answer(response.message, response.finish_reason))
    if not run.scope.is_measured:
        return
    count_tokens(run.scope, b, _labels(model, response.model), usage)
    labels = {semconv.PROVIDER_NAME: model.provider_name, semconv.REQUEST_MODEL: model.name}
    if share is not None:
        run.scope.count(semconv.PROMPT_CACHE_SHARE, share, labels, b.context)
    if usage.cost is not None:
        run.scope.count(semconv.COST, usage.cost, labels, b.context)


def _cached_share(usage: Usage) -> float | None:
    """Return the share of the input from the vendor's prompt cache; None if the counts are unknown or implausible."""
    read = usage.cache_read_input_tokens
    if not usage.input_tokens or read is None or not 0 <= read <= usage.input_tokens:
        return None
    return read / usage.input_tokens


def _labels(model: ModelFacts, response_model: str | None = None) -> Mapping[str, Any]:
    return _labels_of(model.provider_name, model.name, response_model, model.server_address, model.server_port)


@lru_cache(maxsize=1024)
def _labels_of(
    provider: str, name: str, response_model: str | None, address: str | None, port: int | None
) -> Mapping[str, Any]:
    labels = {
        semconv.OPERATION_NAME: semconv.CHAT,
        semconv.PROVIDER_NAME: provider,
        semconv.REQUEST_MODEL: name,
        semconv.RESPONSE_MODEL: response_model,
        semconv.SERVER_ADDRESS: address,
        semconv.SERVER_PORT: port,
    }
    return {name: value for name, value in labels.items() if value is not None}


def _unfinished(partial: list[ModelDelta]) -> Message:
    """Return the received part of an answer that was interrupted."""
    text = "".join(delta.content for delta in partial if delta.type == "text")
    reasoning = "".join(delta.content for delta in partial if delta.type == "reasoning")
    return Message("assistant", [part for part in (ReasoningPart(reasoning), TextPart(text)) if part.content])


def without_repeated_ids(message: Message) -> Message:
    """Return the message with only the first call of each id: vendors reject two calls with one result."""
    if len(message.parts) == 1:
        return message
    seen: set[str | None] = set()
    parts = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            if part.id in seen:
                continue
            seen.add(part.id)
        parts.append(part)
    return message if len(parts) == len(message.parts) else Message(message.role, parts)
