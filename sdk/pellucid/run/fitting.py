"""Fit the requests of a run into the model's window. Imported when a run of an agent with a `context` starts."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pellucid import semconv
from pellucid.compaction import Summarize
from pellucid.compaction.ratios import coarse
from pellucid.compaction.results import read_result
from pellucid.compaction.strategies import READ_RESULT
from pellucid.compaction.view import Cut, Step, View, is_of_turns
from pellucid.compaction.windows import window_of
from pellucid.events import ContextCompacted
from pellucid.messages import Message, Part, ToolResult
from pellucid.models import ModelRequest, ModelResponse
from pellucid.run.token_count import BYTES, TokenCount, estimate, overhead
from pellucid.telemetry import COMPOSE, Boundary, boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import Builtin
from pellucid.types import JSONValue

CUT_AT: Final = 0.8
"""Share of the window at which a request is cut."""

CUT_TO: Final = 0.5
"""Share of the window to which it is cut: far, so that the prefix of requests stays the same for long."""

LEAST: Final = 0.25
"""Share of the window to which it is cut if steps are long."""

BETWEEN: Final = 8
"""Steps as long as the last ones that a request should have room for until it is cut again."""

RECENT: Final = 2
"""Steps at the end of the conversation that stay as they are."""

PROVIDER: Final = "context"
"""Value of `pellucid.provider.id` for `read_result`."""

_FRAME: Final = 4
"""Estimated tokens of a message besides its parts."""

Summarizer: TypeAlias = Callable[[Summarize, str | None, str], Awaitable[str | None]]
"""Returns a summary of a text that extends an earlier one; None if that failed."""


class Fitting:
    """Fits the requests of one run into the window.

    Attributes:
        count: Tokens of the requests, as the vendor counts them.
        window: Tokens of the window.
    """

    def __init__(self, run: Any, count: TokenCount, summarize: Summarizer) -> None:
        self._run = run
        self._summarize = summarize
        self._context = run.setup.context
        self.count = count
        self.window = window_of(f"Agent {run.setup.name!r}", self._context, run.setup.models)
        room = self.window - run.setup.settings.get("max_tokens", 0)
        self._most = min(self.window * CUT_AT, room)
        self._tool = read_result(lambda: run.conversation.messages, run.limits.max_result_bytes)
        self._reads = False
        self._offer: tuple[Catalog, Catalog] | None = None
        self._view = View(self._context, _estimate)
        self._messages: tuple[Message, ...] | None = None
        self._parts: tuple[Any, int, int] = None, 0, 0  # tools, and the estimated tokens of these and of the rest
        self._models = tuple(model.name for model in run.setup.models)
        self._ratio = 1.0  # tokens of the vendor for each estimated one, in the last request
        self._scale: float = self._context.ratios.of(self._models)  # the same, as it decides where to cut
        self._refused = 0.0  # the same, as refusals of the vendor have shown
        self._summary: str | None = None
        self._unsummarized: list[Step] = []
        self._is_started = False

    @property
    def state(self) -> dict[str, Any]:
        """Messages that requests leave out, for a checkpoint."""
        if not (self._view.left_out or self._reads):
            return {}
        return {"cuts": self._view.boundaries, "ratio": self._ratio, "summary": self._summary}

    def view(self) -> tuple[Message, ...]:
        """Return the messages of the next request, as far as they are known."""
        if self._view.read(self._run.conversation.messages) or self._messages is None:
            self._messages = self._view.messages()
        return self._messages

    async def fit(
        self, b: Boundary, request: ModelRequest, catalog: Catalog, facts: dict[str, JSONValue]
    ) -> tuple[ModelRequest, Catalog, dict[str, JSONValue]]:
        """Return a request that fits into the window, as far as that is known, its tools, and what to record of it.

        Raises:
            ConfigError: a function or strategy of the `context` failed.
            BudgetReached: a summary does not fit into what the run may spend.
        """
        self._measure(request)
        if not self._is_started:
            self._start()
            self._is_started = True
        before = self._tokens()
        cuts = [] if self._is_within(self._most) else self._cut()
        cut = await self._report(b, before, cuts)
        request = replace(request, messages=self.view())
        if request.tools:
            catalog = self._offered(catalog)
            request = replace(request, tools=catalog.definitions)
        return request, catalog, {**facts, "context": self._record(b, cut)}

    def _offered(self, catalog: Catalog) -> Catalog:
        """Return the tools with `read_result`, once a result is cut or left out, unless a tool has this name."""
        self._reads = self._reads or self._view.is_cut or self._view.shortened > 0
        if not self._reads or READ_RESULT in catalog.bindings:
            return catalog
        if self._offer is None or self._offer[0] is not catalog:
            read = Binding(self._tool, PROVIDER, Builtin())
            self._offer = catalog, catalog.narrowed({**catalog.bindings, READ_RESULT: read})
        return self._offer[1]

    async def again(self, request: ModelRequest, catalog: Catalog) -> ModelRequest | None:
        """Return a request that was too long for the vendor, cut once more and further; None if nothing can be cut."""
        self._refused = self.window / max(1, self._estimated())
        self._ratio, self._scale = max(self._ratio, self._refused), max(self._scale, self._refused)
        self.count.counted = None
        with boundary(self._run.scope, COMPOSE, agent=self._run.scope.agent) as b:
            before = self._tokens()
            cut = await self._report(b, before, self._apply(self._share(LEAST), self._share(LEAST), 1))
            shorter = replace(request, messages=self.view())
            offered = {"tool_count": len(request.tools), "tool_tokens": catalog.tokens if request.tools else 0}
            b.note(message_count=len(shorter.messages), catalog_digest=catalog.digest, **offered)
            facts: dict[str, JSONValue] = {"messages": len(shorter.messages), "context": self._record(b, cut)}
            b.capture_output(lambda capturer: capturer.facts(facts))
        return shorter if cut else None

    def settle(self, request: ModelRequest, response: ModelResponse) -> None:
        """Take over what the vendor counted."""
        asked, answered = response.usage.input_tokens, response.usage.output_tokens
        self.count.settle(request.messages, None if asked is None or answered is None else asked + answered)
        if asked and (estimated := self._estimated()):
            self._ratio = min(max(asked / estimated, 0.25), 8.0)
            if asked >= self._share(LEAST):  # what vendors add to each request would weigh too much in a short one
                self._scale = max(self._refused, self._context.ratios.learn(self._models, self._ratio))

    def too_long(self) -> str:
        """Return what to say of a request that is too long although it was cut."""
        kept, rest = sum(step.size for step in self._view.steps if step.is_pinned), self._parts[1] + self._parts[2]
        return (
            f"the request is too long for the window of {self.window:,} tokens, although it was cut as far as "
            f"possible: instructions and tools take about {self._tokens_of(rest):,}, messages that "
            f"stay {self._tokens_of(kept):,}, the others {self._tokens_of(self._view.size - kept):,}; correct "
            "Context(window=...), lower Limits.max_result_bytes, or keep fewer messages"
        )

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _measure(self, request: ModelRequest) -> None:
        if self._parts[0] is not request.tools:
            self._parts = request.tools, overhead(replace(request, instructions=None, messages=())), 0
        self._parts = *self._parts[:2], overhead(ModelRequest(instructions=request.instructions))

    def _estimated(self) -> int:
        return self._parts[1] + self._parts[2] + self._view.size

    def _tokens_of(self, estimated: int) -> int:
        return math.ceil(estimated * self._ratio)

    def _tokens(self) -> int:
        return self.count.of(self.view(), lambda: self._tokens_of(self._estimated()))

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Leave out what was left out when the run paused, or what a run with this history would have left out."""
        messages, resumed = self._run.conversation.messages, self._run.pausing.resumption
        state: Mapping[str, Any] = resumed.checkpoint.context if resumed is not None else {}
        if not state:
            self._replay(messages)
            return
        self._reads = True
        self._view.read(messages)
        self._ratio, self._summary = float(state["ratio"]), state["summary"]
        self._scale = max(self._scale, coarse(self._ratio))
        if self._view.restore(state["cuts"]):
            self._set_note()
        else:
            self._summary = None

    def _replay(self, messages: Sequence[Message]) -> None:
        """Cut a history where its requests would have been cut, so that each run with it leaves out the same."""
        for index, message in enumerate(messages):
            if message.role == "assistant" and not self._is_within(self._most):
                self._cut()
            self._view.read(messages, index + 1)

    def _cut(self) -> list[Cut]:
        """Cut the next request; whole turns, which change its beginning, only where the rest leaves little room."""
        between = BETWEEN * self._scale * self._view.step_size(BETWEEN)
        goal = min(max(self._most - between, self._share(LEAST)), self._share(CUT_TO))
        return self._apply(goal, (goal + self._most) / 2, RECENT)

    def _share(self, of_window: float) -> float:
        return float(self._most * of_window / CUT_AT)

    def _apply(self, goal: float, turns_above: float, recent: int) -> list[Cut]:
        """Apply the strategies in order until that is enough; a summary that is not known is made later."""
        cuts = []
        for place, strategy in enumerate(self._context.strategies):
            if self._is_within(turns_above if is_of_turns(strategy) else goal):
                continue
            cut = self._view.apply(place, lambda: self._is_within(goal), recent)
            if cut.steps:
                cuts.append(cut)
            if cut.removed and isinstance(strategy, Summarize):
                self._unsummarized += cut.removed
                if (known := strategy.known(self._view.digest)) is not None:
                    self._summary, self._unsummarized = known, []
            if cut.removed:
                self._set_note()
        if cuts:
            self.count.counted, self._messages = None, None
        return cuts

    def _is_within(self, tokens: float) -> bool:
        return self._scale * self._estimated() <= tokens

    def _set_note(self) -> None:
        gone = f"{self._view.gone} earlier messages"
        if not self._view.gone:
            self._view.set_note(None)
        elif self._summary is None:
            self._view.set_note(f"[{gone} are left out here.]")
        else:
            self._view.set_note(f"[Summary of {gone}, which are left out here]\n{self._summary}")

    async def _report(self, b: Boundary, before: int, cuts: Sequence[Cut]) -> dict[str, JSONValue]:
        """Make the summary of what was left out, and emit and count the cuts; return what to record of them."""
        digest = await self._extend()
        if not cuts:
            return {}
        names, dropped = tuple(dict.fromkeys(cut.strategy for cut in cuts)), sum(cut.messages for cut in cuts)
        scope, after = self._run.scope, self._tokens()
        payload = {"strategies": names, "messages": dropped, "tokens_before": before, "tokens_after": after}
        scope.emit(ContextCompacted, b.span.get_span_context(), {**payload, "summary_digest": digest})
        for cut in cuts:
            labels = {semconv.AGENT_NAME: scope.agent, semconv.COMPOSE_STRATEGY: cut.strategy}
            scope.count(semconv.DROPPED_MESSAGES, cut.messages, labels, b.context)
        listed = [{"strategy": cut.strategy, "messages": cut.ranges, "tokens": cut.tokens} for cut in cuts]
        summary = {"summary_digest": digest} if digest is not None else {}
        return {"tokens_before": before, "tokens_after": after, "strategies": listed, **summary}

    async def _extend(self) -> str | None:
        """Extend the summary by the messages that were left out for it; return its digest, if it has changed."""
        steps, self._unsummarized = self._unsummarized, []
        strategy = next((each for each in self._context.strategies if isinstance(each, Summarize)), None)
        if strategy is None or not steps:
            return None
        summary = self._summary
        for text in _pieces([strategy.text(step.originals) for step in steps], int(self._share(CUT_TO)) * BYTES):
            if (longer := await self._summarize(strategy, summary, text)) is None:
                break
            summary = longer
        else:
            assert summary is not None
            strategy.remember(self._view.digest, summary)
        if summary == self._summary or summary is None:
            return None
        self._summary, self._messages = summary, None
        self._set_note()
        capturer = self._run.scope.capturer
        digest: str | None = self._run.scope.guarded("recording", lambda: capturer.value(summary).digest)
        return digest

    # --- telemetry ----------------------------------------------------------------------------------------------------

    def _record(self, b: Boundary, cut: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
        """Set attributes and metrics of a request; return what to record."""
        scope, note = self._run.scope, self._view.note
        tokens, left_out = self._tokens(), self._view.left_out
        b.attributes({semconv.COMPOSE_TOKENS: tokens, semconv.COMPOSE_LEFT_OUT: left_out})
        summary = _estimate([note])[0] if note is not None else 0
        parts = {
            "instructions": self._parts[2],
            "tools": self._parts[1],
            "results": self._view.results,
            "summary": summary,
            "messages": self._view.size - self._view.results - summary,
        }
        for part, estimated in parts.items():
            labels = {semconv.AGENT_NAME: scope.agent, semconv.COMPOSE_PART: part}
            scope.count(semconv.REQUEST_TOKENS, self._tokens_of(estimated), labels, b.context)
        facts: dict[str, JSONValue] = {"window": self.window, "tokens": tokens, "left_out": left_out}
        return {**facts, "cut": dict(cut)} if cut else facts


def _estimate(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the estimated tokens of messages, and those of them that are results of tools."""
    results: list[Part] = []
    others: list[Part] = []
    for message in messages:
        for part in message.parts:
            (results if isinstance(part, ToolResult) else others).append(part)
    of_results = estimate(results)
    return of_results + estimate(others) + _FRAME * len(messages), of_results


def _pieces(texts: Sequence[str], most: int) -> Iterator[str]:
    """Yield texts joined, each as long as a model can read at once."""
    piece: list[str] = []
    for text in texts:
        if piece and sum(map(len, piece)) + len(text) > most:
            yield "\n".join(piece)
            piece = []
        piece.append(text)
    yield "\n".join(piece)
