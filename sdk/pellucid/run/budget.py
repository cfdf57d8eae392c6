"""The budget of a run: what its model calls, and those of its sub-agents, may still cost.

Before a call, what it costs at least is known: its input, which is the vendor's count of the last answer and an
estimate of what is new, and a short answer. The longest answer that fits is its `max_tokens`. A call that offers tools
also leaves enough for a closing answer without them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from pellucid import semconv
from pellucid.errors import ToolError
from pellucid.failures import contained
from pellucid.messages import Message, Usage
from pellucid.models import ModelRequest, ModelResponse
from pellucid.models.facts import ModelFacts
from pellucid.run.token_count import BYTES, TokenCount, estimate, overhead
from pellucid.telemetry import Boundary

LEAST_ANSWER: Final = 256
"""Tokens that must be left for the answer of a call."""

LEAST_CLOSING: Final = 16
"""Tokens that must be left for a closing answer; vendors refuse a lower `max_tokens`."""

MOST_UNASKED: Final = 4_096
"""Highest `max_tokens` that is sent if the agent's settings have none: every model can answer as much, and vendors
refuse more than the model can."""

_ROUNDING: Final = 1 + 1e-9
"""Factor by which a sum of dollars may exceed its limit, because numbers such as 0.1 are not exact."""

Amounts: TypeAlias = Mapping[str, float]
"""Dollars, tokens and calls, by the names of their limits."""

NOTHING: Final[Amounts] = {"max_cost": 0, "max_tokens": 0, "max_model_calls": 0}


def plus(one: Amounts, other: Amounts, sign: int = 1) -> dict[str, float]:
    """Return the sum of two amounts."""
    return {name: one[name] + sign * other[name] for name in NOTHING}


def limits_of(limits: Any) -> Amounts:
    """Return those `Limits` that bound what a run spends on models."""
    return {name: value for name in NOTHING if (value := getattr(limits, name)) is not None}


@dataclass(slots=True, eq=False)
class Account:
    """Amounts against the limits of one run: its calls, those of its sub-agents, and those before it was resumed.

    Attributes:
        limits: The limits.
        used: Amounts of calls that have ended.
        held: Least cost of the calls in flight.
    """

    limits: Amounts
    used: Amounts = field(default_factory=lambda: NOTHING)
    held: Amounts = field(default_factory=lambda: NOTHING)

    def exceeded(self, need: Amounts) -> str | None:
        """Return the name of a limit that this would exceed, or None."""
        for name, limit in self.limits.items():
            if not self.used[name] + self.held[name] + need[name] <= limit * _ROUNDING:  # not `>`, which lets NaN pass
                return name
        return None


class SharedAccount(Protocol):
    """Share of a run in a budget of many runs."""

    @property
    def key(self) -> object:
        """The same for all budgets that have one account."""

    @property
    def name(self) -> str:
        """Name of the budget."""

    @property
    def has_cost(self) -> bool:
        """True if the budget limits dollars."""

    def exceeded(self, need: Amounts) -> str | None:
        """Return the name of a limit that this certainly exceeds, by what is known to be spent, or None."""
        ...

    def record(self, b: Boundary, limit: str) -> None:
        """Record that the run ended because this limit is reached."""
        ...


Grant: TypeAlias = tuple[Account, Amounts, SharedAccount]
"""Reservation in a shared budget for a call, and the part that the call leaves."""

SHARED: Final = "budget"
"""Reason why a run ends that has reached a limit of a budget that it shares with other runs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A model call that is to be made.

    Attributes:
        request: The request.
        model: The model.
        tokens: Tokens of its input.
        least: Tokens of the shortest answer that makes sense.
        most: Tokens of the longest answer.
        offers_tools: Whether the run goes on if the answer calls tools.
    """

    request: ModelRequest
    model: ModelFacts
    tokens: int
    least: int
    most: int
    offers_tools: bool


@dataclass(frozen=True, slots=True)
class Admitted:
    """A model call that may be made.

    Attributes:
        request: The request, with the highest `max_tokens` that fits.
        model: The model.
        tokens: Tokens of its input.
        least: Its least cost, which is held until it ends.
        offers_tools: Whether the run goes on if the answer calls tools.
    """

    request: ModelRequest
    model: ModelFacts
    tokens: int
    least: Amounts
    offers_tools: bool


class RunBudget:
    """Allowance of a run for models.

    Attributes:
        own: Account of the run, if it has limits of its own.
        outer: Budget of the run in which it is nested.
        shared: Budgets that it shares with other runs, besides those of the outer run.
        closing: Cost of its closing answer, which the calls of its sub-agents leave.
        reached_shared: The shared budget that it has reached, and the limit.
        reported: Reports of shared budgets.
        count: Tokens of its requests, as the vendor counts them.
        inference: Link through which the model calls of the run pass.
    """

    inference: Any

    def __init__(self, run: Any, own: Account | None, outer: RunBudget | None) -> None:
        self.own, self.outer = own, outer
        self.shared: Sequence[SharedAccount] = ()
        self.reached_shared: tuple[SharedAccount, str] | None = None
        self.reported: set[object] = set()
        self.closing = NOTHING
        self._run = run
        self._model: ModelFacts = run.setup.models[0]
        self._offers_tools = True  # whether the last call did
        self._cut_by: str | None = None  # what kept its answer short
        self._overhead = 0  # estimated tokens of a request besides its messages
        self.count = TokenCount()

    @property
    def spent(self) -> dict[str, float]:
        """State of the run's account, and the tokens that the vendor counted last, for a checkpoint."""
        count = self.count
        counted = {"counted": count.counted, "seen": count.seen} if count.counted is not None else {}
        return {**(self.own.used if self.own is not None else {}), **counted}

    def restore(self, spent: Mapping[str, float]) -> None:
        """Restore what was `spent` when the run paused."""
        if self.own is not None:
            self.own.used = {name: spent.get(name, 0) for name in NOTHING}
        if "counted" in spent:
            self.count = TokenCount(int(spent["counted"]), int(spent["seen"]))

    def accounts(self) -> Iterator[tuple[Account, Amounts]]:
        """Yield the accounts that a call of this run counts against, with what it leaves for outer closing answers."""
        for budget, kept in self._outwards():
            if budget.own is not None:
                yield budget.own, kept

    def shared_accounts(self) -> Sequence[tuple[SharedAccount, Amounts]]:
        """Return the shared budgets that a call counts against, each once, with what it leaves there."""
        return [*{s.key: (s, kept) for budget, kept in self._outwards() for s in budget.shared}.values()]

    def _outwards(self) -> Iterator[tuple[RunBudget, Amounts]]:
        budget: RunBudget | None = self
        kept = NOTHING
        while budget is not None:
            yield budget, kept
            if (budget := budget.outer) is not None:
                kept = plus(kept, budget.closing)

    @property
    def limits_cost(self) -> bool:
        """True if the calls of this run count against a limit of cost."""
        return any("max_cost" in account.limits for account, _ in self.accounts()) or any(
            account.has_cost for account, _ in self.shared_accounts()
        )

    def plan(self, model: ModelFacts, request: ModelRequest, *, is_closing: bool) -> Plan:
        """Return what a call needs."""
        self._model = model
        self._offers_tools = offers_tools = bool(request.tools) and not is_closing
        self._overhead = overhead(request)
        tokens, asked = self._tokens(request.messages), request.settings.get("max_tokens")
        most = asked if asked is not None else MOST_UNASKED
        least = min(LEAST_CLOSING if is_closing else LEAST_ANSWER, most)
        return Plan(request, model, tokens, least, most, offers_tools)

    def need(self, plan: Plan, answer: int) -> Amounts:
        """Return what a call with an answer of so many tokens needs."""
        return self._need(plan.tokens, answer, offers_tools=plan.offers_tools)

    def range(self, plan: Plan, kept: Amounts) -> tuple[Amounts, Amounts, Amounts]:
        """Return what a call and what follows need at least and at most, and what the shortest call needs alone."""
        alone = self._need(plan.tokens, plan.least, offers_tools=False)
        return plus(self.need(plan, plan.least), kept), plus(self.need(plan, plan.most), kept), alone

    def refusal(self, plan: Plan) -> str | None:
        """Return the name of a limit of runs that even the shortest call would exceed, or None.

        Stores of shared budgets are asked themselves: what a process knows of them may be old.
        """
        need = self.need(plan, plan.least)
        exceeded = (account.exceeded(plus(need, kept)) for account, kept in self.accounts())
        return next(filter(None, exceeded), None)

    def refuse(self, shared: SharedAccount, limit: str) -> str:
        """Note that a shared budget has refused a call, and return the reason for the run to end."""
        self.reached_shared = shared, limit
        return SHARED

    def admit(self, plan: Plan, grants: Sequence[Grant] = ()) -> Admitted | str:
        """Return a call that fits, and hold what it costs at least; or the name of the limit that it would exceed.

        Args:
            plan: The call.
            grants: Reservations in shared budgets.
        """
        request, most = plan.request, plan.most

        def exceeded(answer: int) -> str | None:
            return self._exceeded(self.need(plan, answer), grants)

        self._cut_by = exceeded(most)
        if self._cut_by is not None:
            if (limit := exceeded(plan.least)) is not None:
                return limit
            sizes = range(plan.least, most + 1)
            most = plan.least - 1 + bisect_left(sizes, True, key=lambda answer: exceeded(answer) is not None)
            request = replace(request, settings={**request.settings, "max_tokens": most})
        least = self._need(plan.tokens, plan.least, offers_tools=False)
        for account, _ in self.accounts():
            account.held = plus(account.held, least)
        return Admitted(request, plan.model, plan.tokens, least, plan.offers_tools)

    def settle(self, call: Admitted, response: ModelResponse) -> Amounts:
        """Count an answer, as the vendor counts or as it is estimated; return what it used."""
        usage, message = response.usage, response.message
        known = usage.input_tokens is not None and usage.output_tokens is not None
        tokens = usage.input_tokens if usage.input_tokens is not None else call.tokens
        answer = usage.output_tokens if usage.output_tokens is not None else estimate(message.parts)
        used = self._charge(call, tokens, answer, usage.cost)
        self.count.settle(call.request.messages, tokens + answer if known else None)
        if call.offers_tools:
            self.closing = self._closing(tokens + answer)
        return used

    def fail(self, call: Admitted, answer: str | None) -> Amounts:
        """Count a call that failed: as a call, with estimated tokens if it had begun to answer; return what it used."""
        if answer is None:
            return self._end(call, {**NOTHING, "max_model_calls": 1})
        return self._charge(call, call.tokens, len(answer) // BYTES, None)

    def reached(self) -> str | None:
        """Return the name of the limit that a further call like the last one would exceed, or None."""
        asked = self._run.setup.settings.get("max_tokens", LEAST_ANSWER)
        conversation = self._run.conversation
        messages = conversation.messages if conversation.fitting is None else conversation.fitting.view()
        tokens = self._tokens(messages)
        return self._exceeded(self._need(tokens, min(LEAST_ANSWER, asked), offers_tools=self._offers_tools))

    def check_call(self) -> None:
        """Check that a tool may be run, whose result the model can still read.

        Raises:
            ToolError: a limit is reached.
        """
        if (limit := self.reached()) is not None:
            what = f"limit {limit}" if limit != SHARED else SHARED
            raise ToolError(f"Not run: the {what} of this run is reached. Answer with what you have.", error_type=limit)

    def cut_short(self, response: ModelResponse) -> str | None:
        """Return the name of the limit that cut an answer off, or None if it is whole."""
        if response.finish_reason != "length":
            return None
        return self.reached() or (SHARED if self._cut_by == SHARED else None)

    def unfinished(self) -> str | None:
        """Return the output of a run without a whole closing answer."""
        last: Message = self._run.conversation.messages[-1]
        if self._run.setup.output is not None:
            return None
        return last.text if last.role == "assistant" else ""

    def ended_by(self, stop_reason: str) -> str | None:
        """Return the name of the shared budget that ended the run, if one did."""
        return self.reached_shared[0].name if stop_reason == SHARED and self.reached_shared is not None else None

    def record(self, b: Boundary) -> None:
        """Record the limit that ended the run, and what was spent of it."""
        name = b.noted("stop_reason")
        if name == SHARED and self.reached_shared is not None:
            account, limit = self.reached_shared
            account.record(b, limit)
        accounts = [account for account, _ in self.accounts() if name in account.limits]
        if accounts:
            tightest = min(accounts, key=lambda account: account.limits[name] - account.used[name])
            value, used = float(tightest.limits[name]), float(tightest.used[name])
            b.attributes({semconv.LIMIT_VALUE: value, semconv.LIMIT_USED: used})

    def price(self, tokens: int, answer: int) -> float:
        """Return the cost of a call in US dollars; infinite if it is unknown, 0 if no limit depends on it."""
        if not self.limits_cost:
            return 0.0
        model, usage = self._model, Usage(input_tokens=tokens, output_tokens=answer)
        try:
            cost = self._run.setup.prices(model.provider_name, model.name, usage, model.name)
            return math.inf if cost is None else float(cost)
        except BaseException as error:  # noqa: BLE001  (price tables are the application's)
            self._run.scope.fault("prices", contained(error))
            return math.inf

    def _need(self, tokens: int, answer: int, *, offers_tools: bool) -> dict[str, float]:
        need = {"max_cost": self.price(tokens, answer), "max_tokens": tokens + answer, "max_model_calls": 1}
        return plus(need, self._closing(tokens + answer)) if offers_tools else need

    def _closing(self, tokens: int) -> Amounts:
        """Return what a closing answer costs after so many tokens."""
        most = min(LEAST_ANSWER, self._run.setup.settings.get("max_tokens", LEAST_ANSWER))
        return self._need(tokens, most, offers_tools=False)

    def _exceeded(self, need: Amounts, grants: Sequence[Grant] = ()) -> str | None:
        for account, kept in self.accounts():
            if (name := account.exceeded(plus(need, kept))) is not None:
                return name
        for shared, kept in self.shared_accounts():
            if (name := shared.exceeded(plus(need, kept))) is not None:
                return self.refuse(shared, name)
        for account, kept, shared in grants:
            if (name := account.exceeded(plus(need, kept))) is not None:
                return self.refuse(shared, name.removeprefix("max_"))
        return None

    def _tokens(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a request with these messages: as the vendor counts, and an estimate of what is new."""
        return self.count.of(messages, lambda: self._overhead + sum(estimate(message.parts) for message in messages))

    def _charge(self, call: Admitted, tokens: int, answer: int, cost: float | None) -> Amounts:
        if cost is None:
            cost = self.price(tokens, answer)
            cost = cost if cost < math.inf else call.least["max_cost"]
        return self._end(call, {"max_cost": cost, "max_tokens": tokens + answer, "max_model_calls": 1})

    def _end(self, call: Admitted, used: Amounts) -> Amounts:
        for account, _ in self.accounts():
            account.held = plus(account.held, call.least, -1)
            account.used = plus(account.used, used)
        return used
