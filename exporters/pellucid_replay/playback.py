"""Playback of one run: finds the recorded boundary that answers for the one at hand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio

from pellucid import semconv
from pellucid.context import DiscoveryContext, ToolContext
from pellucid.messages import ToolDefinition
from pellucid.models import ModelRequest
from pellucid.telemetry import current_scope
from pellucid.telemetry.scope import DEADLINE_PASSED
from pellucid.tools.tool import Tool, digest_of
from pellucid.types import JSONObject, JSONValue
from pellucid_replay.late_results import LateResults
from pellucid_replay.session import Divergence, Session
from pellucid_replay.taped_run import TapedRun

if TYPE_CHECKING:
    from pellucid_replay.tape import TapedSpan


_PATIENCE: Final = 1.0
"""Seconds that a failing discovery waits for one beside it."""


class Playback:
    """Position of a replay on the tape of one run.

    Attributes:
        session: The replay.
        taped: The recorded run.
        late: Its asynchronous calls.
        ended: Set when a nested run has come to the end of a recording that was stopped.
    """

    def __init__(self, session: Session, taped: TapedRun, *, is_nested: bool = False) -> None:
        self.session = session
        self.taped = taped
        self.ended = anyio.Event()
        self.late = LateResults(taped)
        self._is_nested = is_nested
        self._chat = 0
        self._tools: Sequence[ToolDefinition] = ()
        self._digest: str | None = None
        self._used: set[str] = set()
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._listed: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    def inside(self, nested: TapedRun) -> Playback:
        """Return the playback of a nested run."""
        return Playback(self.session, nested, is_nested=True)

    async def chat(self, model: str, request: ModelRequest) -> TapedSpan | None:
        """Return the recorded model call for a request; None if the replay continues live."""
        session, chats = self.session, self.taped.chats
        if session.is_live:
            return None
        iteration = current_scope().iteration
        if self._chat >= len(chats):
            await self._missing(f"{semconv.CHAT} {model}", iteration, "model calls", _recent(request))
            return None
        span = chats[self._chat]
        self._chat += 1
        if divergence := self._difference(span, model, request):
            await session.diverge(divergence)
            return None
        await self.end_if_stopped(span)
        return span

    async def outlast(self) -> NoReturn:
        """Never end, as a call that its run has cancelled; if that was stopped, so is the replay once it only waits."""
        if not self.taped.is_complete:
            await self.late.exhausted.wait()
            await anyio.wait_all_tasks_blocked()
            await self._end(self.taped.root)
        await anyio.sleep_forever()
        raise AssertionError

    async def call(self, name: str, arguments: JSONObject, ctx: ToolContext) -> TapedSpan | None:
        """Return the recorded call of a tool; None if the replay continues live."""
        if self.session.is_live:
            return None
        scope = current_scope()
        replayed = scope.capturer.clean(arguments)
        own, equal = self._candidates(name, replayed, ctx)
        span = next((span for span in own if span in equal), None) or next(iter(equal), None)
        if span is None:
            if not (own or self.taped.is_complete):
                await self._end(self.taped.root)
            other = own[0] if own else None
            recorded = _arguments(other) if other is not None else None
            divergence = self._divergence(
                f"{semconv.EXECUTE_TOOL} {name}", scope.iteration, "arguments", recorded, replayed, other
            )
            await self.session.diverge(divergence)
            return None
        self._used.add(span.span_id)
        await self.end_if_stopped(span)
        return span

    def peek(self, name: str, arguments: JSONObject, ctx: ToolContext) -> TapedSpan | None:
        """Return what `call` would return, without taking it."""
        own, equal = self._candidates(name, current_scope().capturer.clean(arguments), ctx)
        return next((span for span in own if span in equal), None) or next(iter(equal), None)

    def _candidates(self, name: str, arguments: JSONValue, ctx: ToolContext) -> tuple[list[TapedSpan], list[TapedSpan]]:
        """Return the recorded calls of a tool that are left: those with the id of a call, and those with its arguments.

        Those that never reached the tool are not among them. Calls of a live model have other ids, so all of the
        iteration count as those with the id.
        """
        left = [
            span
            for spans in self.taped.calls.values()
            for span in spans
            if span.get(semconv.TOOL_NAME) == name and span.span_id not in self._used
        ]
        iteration, has_ids = current_scope().iteration, "model" not in self.session.live
        own = [
            span
            for span in left
            if span.iteration == iteration and (not has_ids or span.get(semconv.TOOL_CALL_ID) == ctx.tool_call_id)
        ]
        return own, [span for span in left if _arguments(span) == arguments]

    async def discovery(
        self, provider_id: str, ctx: DiscoveryContext, parents: Sequence[TapedSpan]
    ) -> TapedSpan | None:
        """Return the recorded discovery of a provider; None if the replay continues live."""
        if self.session.is_live:
            return None
        spans = self.taped.discoveries(provider_id, parents)
        span = next((span for span in spans if span.iteration == ctx.iteration), None)
        if span is None:
            name = f"{semconv.DISCOVER_TOOLS} {provider_id}"
            known = [span for span in spans if span.outcome == semconv.COMPLETED]
            if "model" in self.session.live and known:
                return known[-1]  # the model takes more iterations than the recorded one
            await self._missing(name, ctx.iteration, "discoveries", {"iteration": ctx.iteration})
            return None
        recorded, replayed = _skills(span), list(ctx.active_skill_ids)
        if recorded is not None and recorded != replayed:
            await self.session.diverge(
                self._divergence(span.name, ctx.iteration, "active skills", recorded, replayed, span)
            )
            return None
        await self.late.settle(span.start)
        self._begun[span.span_id].set()
        return span

    async def differs(self, span: TapedSpan, what: str, recorded: JSONValue, replayed: JSONValue) -> None:
        """Note that a boundary differs; stop the replay, or return if it continues live."""
        await self.session.diverge(self._divergence(span.name, span.iteration or 0, what, recorded, replayed, span))

    def listed(self, span: TapedSpan) -> None:
        """Note that a discovery ends."""
        self._listed[span.span_id].set()

    async def catch_up(self, span: TapedSpan) -> None:
        """Wait until the discoveries beside one that fails are as far as they were when it failed."""
        assert span.end is not None  # it failed
        for other in self.taped.beside(span):
            if f"hub:{other.get(semconv.PROVIDER_ID)}" in self.session.live:
                continue
            with anyio.move_on_after(_PATIENCE):  # what is live may keep it from beginning
                if other.start < span.end:
                    await self._begun[other.span_id].wait()
                if other.end is not None and other.end < span.end and other.outcome != semconv.CANCELLED:
                    await self._listed[other.span_id].wait()

    def approval_needed(self, tool: Tool, call_id: str) -> bool:
        """Return whether the recorded call waited for a person; whether any does, for a call of a live model."""
        if "model" in self.session.live:
            return bool(tool.needs_approval)
        return any(
            event["name"] == "approval.requested" and event["attributes"].get(semconv.TOOL_CALL_ID) == call_id
            for event in self.taped.root.events
        )

    async def end_if_stopped(self, span: TapedSpan) -> None:
        """Stop where the recorded run was stopped; wait where a failure beside it had cancelled the boundary."""
        if not self.was_stopped(span):
            return
        if self.taped.is_complete:
            await anyio.sleep_forever()
        await self._end(span)

    def was_stopped(self, span: TapedSpan) -> bool:
        """Return whether a boundary did not come to its end, because of its run or of a failure beside it."""
        if span.end is None or span.outcome == semconv.CANCELLED:
            return True
        return span.error == DEADLINE_PASSED

    async def _missing(self, name: str, iteration: int, what: str, replayed: JSONValue) -> None:
        if not self.taped.is_complete:
            await self._end(self.taped.root)
        await self.session.diverge(self._divergence(name, iteration, what, None, replayed, None))

    async def _end(self, span: TapedSpan) -> NoReturn:
        if self._is_nested:
            self.ended.set()
            await anyio.sleep_forever()
        await self.session.end(span)

    def _difference(self, span: TapedSpan, model: str, request: ModelRequest) -> Divergence | None:
        scope = current_scope()
        if span.get(semconv.REQUEST_MODEL) != model:
            return self._divergence(span.name, scope.iteration, "models", span.get(semconv.REQUEST_MODEL), model, span)
        if scope.capturer.digest(request.messages) != span.get(semconv.INPUT_DIGEST):
            return self._divergence(
                span.name, scope.iteration, "messages", _json(span, semconv.INPUT_MESSAGES), _recent(request), span
            )
        recorded, replayed = span.get(semconv.CATALOG_DIGEST), self._digest_of(request.tools)
        if recorded != replayed:
            names = [tool.name for tool in request.tools]
            offered = self._offered(span) or recorded
            return self._divergence(span.name, scope.iteration, "tools", offered, names, span)
        return None

    def _offered(self, span: TapedSpan) -> JSONValue:
        """Return the names of the tools of a recorded request, which are recorded when they change."""
        for chat in reversed(self.taped.chats[: self.taped.chats.index(span) + 1]):
            if semconv.TOOL_DEFINITIONS in chat.attributes:
                return [tool.get("name") for tool in _json(chat, semconv.TOOL_DEFINITIONS) or ()]
        return None

    def _digest_of(self, tools: Sequence[ToolDefinition]) -> str | None:
        """Return the digest of the tools of a request; requests share them while the catalogue does not change."""
        if tools is not self._tools:
            self._tools = tools
            self._digest = blake2b(b"".join(map(digest_of, tools)), digest_size=16).hexdigest() if tools else None
        return self._digest

    def _divergence(
        self,
        boundary: str,
        iteration: int,
        what: str,
        recorded: JSONValue,
        replayed: JSONValue,
        span: TapedSpan | None,
    ) -> Divergence:
        return Divergence(
            boundary=boundary,
            iteration=iteration,
            what=what,
            recorded=recorded,
            replayed=replayed,
            run_id=self.taped.root.run_id,
            span_id=span.span_id if span is not None else None,
        )


def _recent(request: ModelRequest) -> JSONValue:
    """Return the messages of a request since the last answer before them, as they are recorded."""
    messages = list(request.messages)
    start = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=0)
    return current_scope().capturer.clean([message.to_dict() for message in messages[start:]])


def _json(span: TapedSpan, attribute: str) -> Any:
    text = span.get(attribute)
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return text


def _arguments(span: TapedSpan) -> JSONValue:
    recorded: JSONValue = _json(span, semconv.TOOL_CALL_ARGUMENTS)
    return recorded


def _skills(span: TapedSpan) -> JSONValue:
    recorded = _json(span, semconv.INPUT)
    return recorded.get("active_skill_ids") if isinstance(recorded, dict) else None
