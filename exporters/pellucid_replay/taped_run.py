"""One run of a tape: its boundaries in the order and under the names in which a replay asks for them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from pellucid import semconv
from pellucid.context import Identity
from pellucid.messages import Message
from pellucid.tools.names import ASYNC_STATUS
from pellucid_replay import contents
from pellucid_replay.tape import INTERRUPTED, Tape, TapedSpan

_BOUNDARIES: Final = (semconv.DISCOVERY, semconv.INFERENCE, semconv.DISPATCH)
STOPPED: Final = (semconv.CANCELLED, semconv.TIMEOUT, semconv.LOST, INTERRUPTED, "running")
"""Outcomes of a run or span that did not come to its end by itself."""


class TapedRun:
    """One run of a tape.

    Attributes:
        tape: The tape.
        root: Its `invoke_agent` span.
        chats: Its model calls, oldest first.
        calls: Its tool calls by call id, oldest first.
        is_joined: Whether it consists of a run that was interrupted, and of one that continued it.
        waits: Waits for the results of asynchronous calls, by the spans of these calls.
        children: Discoveries by the span that they belong to: those of a `combined()` provider are below its own.
    """

    def __init__(
        self, tape: Tape, root: TapedSpan, spans: Sequence[TapedSpan] | None = None, *, is_joined: bool = False
    ) -> None:
        """Create the run of a root, from its own spans or others."""
        self.is_joined = is_joined
        self.tape = tape
        self.root = root
        self.chats: list[TapedSpan] = []
        self.calls: dict[str, list[TapedSpan]] = defaultdict(list)
        self.waits: dict[str | None, TapedSpan] = {}
        self.children: dict[str | None, list[TapedSpan]] = defaultdict(list)
        self.spans = spans if spans is not None else [span for span in tape.spans if span.run_id == root.run_id]
        for span in self.spans:
            if span.phase == semconv.INFERENCE:
                self.chats.append(span)
            elif span.phase == semconv.DISPATCH:
                self.calls[str(span.get(semconv.TOOL_CALL_ID))].append(span)
            elif span.phase == semconv.AWAIT:
                self.waits[span.parent_span_id] = span
            elif span.phase == semconv.DISCOVERY:
                self.children[span.parent_span_id].append(span)

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return str(self.root.get(semconv.AGENT_NAME))

    @property
    def is_complete(self) -> bool:
        """True if the run ended by itself: it was not cancelled, and its process did not end first."""
        return self.root.outcome not in STOPPED

    @cached_property
    def input(self) -> tuple[Message, ...]:
        """Messages with which the run started."""
        return contents.input_of(self.root)

    @cached_property
    def identity(self) -> Identity | None:
        """Identity on whose behalf the run acted."""
        for span in self.spans:
            recorded = contents.parsed(span, semconv.INPUT, dict) if span.phase == semconv.DISCOVERY else None
            if recorded is not None and (known := recorded.get("identity")) is not None:
                try:
                    return Identity(**known)
                except TypeError as error:
                    raise contents.lacks(span, "has an identity that cannot be read") from error
        conversation = self.root.get(semconv.CONVERSATION_ID)
        return Identity(conversation_id=conversation) if conversation is not None else None

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        """Configuration of the agent.

        Raises:
            TapeError: it was not recorded.
        """
        known = contents.parsed(self.root, semconv.AGENT_CONFIGURATION, dict)
        if known is None:
            raise contents.lacks(self.root, f"has no {semconv.AGENT_CONFIGURATION}")
        return known

    @cached_property
    def nested(self) -> Mapping[str, TapedRun]:
        """Runs nested in tool calls, by the ids of the spans of these calls."""
        own = {span.span_id for calls in self.calls.values() for span in calls}
        return {
            span.parent_span_id: TapedRun(self.tape, span)
            for span in self.tape.spans
            if span.phase == semconv.RUN and span.parent_span_id in own and span.parent_span_id is not None
        }

    def namespace(self, call_key: str | None = None) -> uuid.UUID:
        """Return the namespace of the ids of the run's calls; `call_key` is that of the call that it is nested in."""
        durable = self.root.get(semconv.DURABLE_RUN_ID)
        if durable is None:
            return uuid.UUID(self.root.run_id)
        outer = uuid.uuid5(uuid.NAMESPACE_OID, durable)
        return uuid.uuid5(outer, call_key) if call_key is not None else outer

    @property
    def providers(self) -> Sequence[str]:
        """Ids of the providers, in the order of the agent."""
        return list(dict.fromkeys(str(span.get(semconv.PROVIDER_ID)) for span in self.children[self.root.span_id]))

    def discoveries(self, provider_id: str, parents: Sequence[TapedSpan]) -> list[TapedSpan]:
        """Return the discoveries of a provider below any of these spans, oldest first."""
        return [
            span
            for parent in parents
            for span in self.children[parent.span_id]
            if span.get(semconv.PROVIDER_ID) == provider_id
        ]

    def reader_of(self, wait: TapedSpan) -> TapedSpan | None:
        """Return the model call after which the run read the result of an asynchronous call, or None if it did not."""
        result_id = str(wait.get(semconv.ASYNC_RESULT_ID))
        delivery = f'"status_{result_id[-32:]}"'
        for before, chat in pairwise(self.chats):
            if delivery in str(chat.get(semconv.INPUT_MESSAGES)):
                return before
        for span in self.spans:
            is_status = span.phase == semconv.DISPATCH and span.get(semconv.TOOL_NAME) == ASYNC_STATUS
            if is_status and result_id in str(span.get(semconv.TOOL_CALL_ARGUMENTS)) and span.start >= (wait.end or 0):
                return next((chat for chat in reversed(self.chats) if chat.start < span.start), None)
        return None

    def beside(self, span: TapedSpan) -> list[TapedSpan]:
        """Return the other discoveries of the same iteration, except those of skills, which do not fail."""
        return [
            other
            for others in self.children.values()
            for other in others
            if other is not span and other.iteration == span.iteration and other.get(semconv.PROVIDER_KIND) != "skill"
        ]

    def check(self) -> None:
        """Check that the tape holds everything that a replay needs.

        Raises:
            TapeError: it lacks something; the text names it.
        """
        if semconv.RESUMED_FROM not in self.root.attributes:
            _ = self.input
        _ = self.identity
        self._check_ends()
        for chat in self.chats:
            if chat.outcome == semconv.COMPLETED:
                contents.answer_of(chat)
                contents.chunks_of(chat)
        for span in (span for calls in self.calls.values() for span in calls):
            if span.outcome == semconv.COMPLETED and semconv.OUTPUT_DIGEST in span.attributes:
                contents.result_of(span)
        for span in (span for children in self.children.values() for span in children):
            digest = span.get(semconv.CATALOG_DIGEST)
            if digest is not None and digest not in self.tape.catalogs:
                raise contents.lacks(span, f"lists the catalogue {digest}, which the recording does not have")
        for run in self.nested.values():
            run.check()

    def _check_ends(self) -> None:
        """Check that the boundaries of a run that came to its end did so, too.

        Raises:
            TapeError: the end of one is not recorded, so that a replay would wait for it.
        """
        for span in self.spans:
            if self.is_complete and span.end is None and span.phase in _BOUNDARIES:
                raise contents.lacks(span, "has no end, although its run has")
