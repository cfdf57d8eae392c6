"""Ordinary providers, tools and models that answer from a tape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

import anyio
import anyio.to_thread

from pellucid import semconv
from pellucid.approvals.elicitation import InputRequired
from pellucid.context import DiscoveryContext, ToolContext
from pellucid.errors import DiscoveryError, ToolError
from pellucid.messages import ReasoningPart, TextPart
from pellucid.models import Model, ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.models.base import closable
from pellucid.providers import ToolProvider
from pellucid.providers.fetches import notify
from pellucid.providers.listing import Lister, list_all
from pellucid.run.pausing.state import pending
from pellucid.run.state import current_run
from pellucid.telemetry import current_scope
from pellucid.tools import Tool
from pellucid.types import JSONObject
from pellucid_replay import contents
from pellucid_replay.playback import Playback
from pellucid_replay.questions import questions_of
from pellucid_replay.tape import TapedSpan
from pellucid_replay.taped_tools import tools_of


class TapeModel:
    """Model that gives the recorded answers.

    Attributes:
        name: Name of the recorded model.
        provider_name: Its vendor.
    """

    def __init__(self, playback: Playback, model: Model) -> None:
        """Create the stand-in for a model, which answers where the replay continues live."""
        self.name = model.name
        self.provider_name = model.provider_name
        self.server_address = getattr(model, "server_address", None)
        self.server_port = getattr(model, "server_port", None)
        self.native_output = getattr(model, "native_output", False)
        self.provider_tools: Collection[tuple[str, str]] = getattr(model, "provider_tools", frozenset())
        self._playback = playback
        self._model = model

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded response.

        Raises:
            ModelError: the recorded call failed.
        """
        span = await self._playback.chat(self.name, request)
        if span is None:
            return await self._model.generate(request)
        await self._playback.session.wait(span)
        return await self._answer(span)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the recorded answer in the recorded pieces.

        Raises:
            ModelError: the recorded call failed.
        """
        span = await self._playback.chat(self.name, request)
        if span is None:
            async for item in closable(self._model.stream(request)):
                yield item
            return
        async for delta in self._deltas(span):
            yield delta
        yield await self._answer(span)

    async def _answer(self, span: TapedSpan) -> ModelResponse:
        if span.outcome != semconv.COMPLETED:
            raise contents.model_failure(span)
        await self._playback.late.release(span)
        return contents.answer_of(span)

    async def _deltas(self, span: TapedSpan) -> AsyncIterator[ModelDelta]:
        """Yield the pieces that arrived, also of an answer that was interrupted."""
        texts = _texts_of(span)
        elapsed = 0.0
        for moment, kind, length in contents.chunks_of(span):
            await self._playback.session.sleep(moment - elapsed)
            elapsed = moment
            piece, texts[kind] = texts.get(kind, "")[:length], texts.get(kind, "")[length:]
            yield ModelDelta(kind, piece)  # type: ignore[arg-type]  # one of the kinds, as it was recorded
        await self._playback.session.wait(span, elapsed)


def _texts_of(span: TapedSpan) -> dict[str, str]:
    """Return the text, the reasoning and the names of the called tools of an answer."""
    if semconv.OUTPUT_MESSAGES not in span.attributes:
        return {}
    message = contents.answer_of(span).message
    parts = message.parts
    return {
        "tool_call": "".join(call.name for call in message.tool_calls),
        "text": "".join(part.content for part in parts if isinstance(part, TextPart)),
        "reasoning": "".join(part.content for part in parts if isinstance(part, ReasoningPart)),
    }


class TapeProvider:
    """Provider that lists the recorded tools, with the recorded failures.

    Attributes:
        id: Id of the recorded provider.
        kind: Its kind.
    """

    detached = True
    """It does not wait for anything outside of the run."""
    measures_requests = True

    def __init__(
        self, playback: Playback, provider_id: str, parents: Sequence[TapedSpan], provider: ToolProvider | None
    ) -> None:
        """Create the stand-in for a provider, which lists where the replay continues live.

        Args:
            playback: The recording.
            provider_id: Id of the provider.
            parents: Spans that the recorded discoveries are below: the run, or those of a `combined()` provider.
            provider: The provider, if there is one.
        """
        self.id = provider_id
        self._playback = playback
        self._parents = parents
        self._provider = provider
        self._spans = playback.taped.discoveries(provider_id, parents)
        first = self._spans[0] if self._spans else None
        self.kind = first.get(semconv.PROVIDER_KIND) if first is not None else "custom"
        self.server_address = first.get(semconv.SERVER_ADDRESS) if first is not None else None
        self.server_port = first.get(semconv.SERVER_PORT) if first is not None else None
        self.source = getattr(provider, "source", None)
        self._inner = [
            Lister(TapeProvider(playback, inner, self._spans, None), serves_stale=False) for inner in self._inner_ids()
        ]
        self._tools: dict[str, Sequence[Tool]] = {}

    def _inner_ids(self) -> list[str]:
        children = self._playback.taped.children
        spans = [child for span in self._spans for child in children[span.span_id]]
        return list(dict.fromkeys(str(span.get(semconv.PROVIDER_ID)) for span in spans))

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the recorded tools.

        Raises:
            DiscoveryError: the recorded discovery failed.
        """
        span = await self._playback.discovery(self.id, ctx, self._parents)
        if span is None:
            return await self._list_live(ctx)
        # One that ended did so before the failure of another could cancel it; with recorded times, it does again.
        is_instant = self._playback.session.timing == 0
        with anyio.CancelScope(shield=is_instant and not self._playback.was_stopped(span)):
            return await self._replayed(span, ctx)
        raise AssertionError  # the scope is never cancelled

    async def _replayed(self, span: TapedSpan, ctx: DiscoveryContext) -> Sequence[Tool]:
        await self._list_inner(span, ctx)
        await self._playback.end_if_stopped(span)
        await self._playback.session.wait(span)
        ctx.report(cache=span.get(semconv.DISCOVERY_CACHE))
        if (notice := span.get(semconv.DISCOVERY_NOTICE)) is not None:
            notify(ctx, notice)
        if span.outcome != semconv.COMPLETED:
            await self._playback.catch_up(span)
            self._playback.listed(span)
            raise contents.discovery_failure(span)
        tools = await self._listed(span)
        self._playback.listed(span)
        return tools

    async def _list_inner(self, span: TapedSpan, ctx: DiscoveryContext) -> None:
        """List the tools of the providers that this one combines; the first failure cancels the others, if it did."""
        ids = self._ids_below(span)
        inner = [item for item in self._inner if item.provider.id in ids]
        if not inner:
            return
        with suppress(DiscoveryError):
            await list_all(inner, current_scope(), ctx, skip_failed=span.outcome == semconv.COMPLETED)

    def _ids_below(self, span: TapedSpan) -> set[str]:
        return {str(child.get(semconv.PROVIDER_ID)) for child in self._playback.taped.children[span.span_id]}

    async def _listed(self, span: TapedSpan) -> Sequence[Tool]:
        """Return the tools of a recorded discovery."""
        digest = str(span.get(semconv.CATALOG_DIGEST))
        if digest not in self._tools:
            catalog = self._playback.taped.tape.catalogs[digest]
            self._tools[digest] = tuple(tools_of(catalog, self._stand_in))
        return self._tools[digest]

    def _stand_in(self, tool: Tool) -> Tool:
        """Return a tool that answers from the tape, in place of the recorded one."""
        playback = self._playback
        if f"tool:{tool.name}" in playback.session.live:
            return replace(tool, run=partial(self._call_live, tool.name))
        return replace(
            tool,
            run=partial(self._call, tool),
            on_invalid_output=None,  # recorded results were checked, and may be cut or redacted
            needs_approval=lambda _, ctx: playback.approval_needed(tool, ctx.tool_call_id),
        )

    async def _call(self, tool: Tool, arguments: JSONObject, ctx: ToolContext) -> Any:
        playback = self._playback
        span = await playback.call(tool.name, arguments, ctx)
        if span is None:
            return await self._call_live(tool.name, arguments, ctx)
        if tool.execution == "same-invocation":
            return await self._in_background(ctx.tool_call_id, span)
        await playback.late.settle(span.end)
        if span.outcome == semconv.COMPLETED and tool.execution is None:
            await playback.session.wait(span)
            if questions := questions_of(span, self.id):
                raise InputRequired(questions, None)
            return contents.result_of(span)
        if span.outcome != semconv.COMPLETED:
            await playback.session.wait(span)
            raise contents.tool_failure(span)
        return None

    async def _in_background(self, call_id: str, span: TapedSpan) -> Any:
        """Return the result of an asynchronous call when the recorded one had ended."""
        wait = self._playback.taped.waits.get(span.span_id)
        if wait is None or wait.end is None or wait.get(semconv.ASYNC_STATUS) == semconv.CANCELLED:
            await self._playback.outlast()
        if "model" in self._playback.session.live:  # the run does not go the way of the recorded one
            await self._playback.session.wait(wait)
        else:
            await self._playback.late.take_turn(wait)
        status, run = wait.get(semconv.ASYNC_STATUS), current_run()
        if status == "expired" and run is not None:
            for call in pending(run).calls.running:
                if call.facts.tool_call_id == call_id:
                    call.scope.cancel()
            await anyio.sleep_forever()
        value = contents.value_of(wait, semconv.OUTPUT, semconv.OUTPUT_DIGEST)
        if status == "failed":
            raise ToolError(str(value), error_type=wait.error_type or "", error_kind=contents.kind_of(wait))
        return contents.as_result(value)

    async def _list_live(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        if self._provider is None:
            raise DiscoveryError(self.id, "the replay continues live, and asks only the provider that combines it")
        listed = self._provider.list_tools(ctx)
        return listed if isinstance(listed, Sequence) else await listed

    async def _call_live(self, name: str, arguments: JSONObject, ctx: ToolContext) -> Any:
        """Call the tool of the real provider."""
        context = DiscoveryContext(iteration=ctx.iteration, identity=ctx.identity, signal=ctx.signal)
        for tool in await self._list_live(context):
            if tool.name == name:
                if tool.mode == "thread":
                    return await anyio.to_thread.run_sync(tool.run, arguments, ctx, abandon_on_cancel=True)
                value = tool.run(arguments, ctx)
                return await value if isawaitable(value) else value
        raise ToolError(
            f"Tool {name!r} is not live: provider {self.id!r} no longer lists it.", error_type="tool_removed"
        )
