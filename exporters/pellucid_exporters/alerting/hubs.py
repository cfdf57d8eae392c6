"""Alerts on tool hubs: slow, silent, failing, down, backed off, changing, or queried too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pellucid_exporters.alerting.definition import (
    DAY,
    FIVE_MINUTES,
    HALF_HOUR,
    HOUR,
    SIX_HOURS,
    TEN_MINUTES,
    Context,
    Definition,
    Severity,
    Words,
    seconds,
    share,
)
from pellucid_exporters.alerting.thresholds import Thresholds

ALL: Final = 0.999999
"""A share above is that of all: sums of parts of windows are rounded."""

_AFTERMATH: Final = 360.0
"""Seconds for which inhibition of other pages continues, since windows of 5 min still include the past problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """A speed at which a hub spends its budget of late round trips.

    Attributes:
        name: Value of the label `burn`.
        factor: Name of the threshold.
        short, long: Windows in seconds, in both of which it must be exceeded.
    """

    name: str
    factor: str
    short: float
    long: float
    severity: Severity
    after: float

    def factor_of(self, thresholds: Thresholds) -> float:
        """Return the multiple of the budget."""
        return thresholds.numbers()[self.factor]

    def limit(self, thresholds: Thresholds, budget: float) -> float:
        """Return the share of late round trips; at most that of all of them, however large a hub's budget is."""
        return min(self.factor_of(thresholds) * budget, ALL)


BURNS: Final = (
    Burn(name="fast", factor="slow_fast_burn", short=FIVE_MINUTES, long=HOUR, severity="page", after=120.0),
    Burn(name="slow", factor="slow_slow_burn", short=HALF_HOUR, long=SIX_HOURS, severity="ticket", after=900.0),
    Burn(name="steady", factor="slow_steady_burn", short=SIX_HOURS, long=3 * DAY, severity="ticket", after=900.0),
)
"""Speeds of the SRE workbook of Google (chapter 5), but that 6 is a ticket: a slow hub rarely ends runs."""


def slow(context: Context, burn: Burn, words: Words) -> Definition:
    """Define the alert on round trips that are slower than the hub's objective."""
    thresholds = context.thresholds
    recent, long = context.window(burn.short), context.window(burn.long)
    return Definition(
        name="ToolHubSlow",
        severity=burn.severity,
        after=burn.after,
        labels={"burn": burn.name},
        summary=f"{words.subject} is slow: {words.value} of the requests to it in {recent} took longer than its "
        f"objective of {words.objective}; p95 is {words.p95}.",
        description=f"At most {words.budget} of the requests should take longer than what the hub declared. More than "
        f"{burn.factor_of(thresholds):g} times as many did, or all, in the last {recent} and in the last {long}. Runs "
        f"wait for them.",
    )


def slow_streak(context: Context, words: Words) -> Definition:
    """Define the alert on a hub that is called too seldom for a share, and was slow each time."""
    return Definition(
        name="ToolHubSlow",
        severity="ticket",
        labels={"burn": "streak"},
        summary=f"{words.subject} is slow: {words.value} requests to it in a row took longer than its objective of "
        f"{words.objective}.",
        description=f"It is called so seldom that no share of its requests means anything. The limit is "
        f"{context.thresholds.slow_streak:g} in a row, or as many within {context.window(DAY)} and no other.",
    )


def silent(context: Context, words: Words) -> Definition:
    """Define the alert on a hub that does not answer."""
    thresholds = context.thresholds
    return Definition(
        name="ToolHubSilent",
        severity="page",
        keep=_AFTERMATH,
        summary=f"{words.subject} is silent: it has not answered since {words.since}, for {words.value}; requests "
        f"without an answer: {words.requests}; its objective is {words.objective}.",
        description=f"No request was answered, not even by an error, for more than {seconds(thresholds.hanging_after)} "
        f"and more than {thresholds.hanging_objectives:g} times its objective, although there were requests in the "
        f"last {context.window(FIVE_MINUTES)}. It hangs, or the network swallows what is sent. Runs that need its "
        f"tools wait until they give up.",
    )


def failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed requests."""
    return Definition(
        name="ToolHubFailing",
        severity="page",
        after=120.0,
        summary=f"{words.subject} fails: {words.value} of the requests to it in {context.window(FIVE_MINUTES)}; the "
        f"limit is {share(context.thresholds.hub_failing)}.",
        description="Unless a reliability rule or stale_if_error stands in for it, each failure ends a run.",
    )


def down(context: Context, words: Words) -> Definition:
    """Define the alert on requests without a success."""
    return Definition(
        name="ToolHubDown",
        severity="page",
        after=60.0,
        keep=_AFTERMATH,
        summary=f"{words.subject} is down: {words.value} requests to it in {context.window(TEN_MINUTES)} failed; "
        f"{words.last_success}; the limit is {seconds(context.thresholds.hub_down_after * context.scale)}, its latency "
        f"objective {words.objective}.",
        description="No request succeeded, although there were some. Runs use an old catalogue, or fail.",
    )


def circuit_open(words: Words, of_hub: Callable[[str], str]) -> Definition:
    """Define the alert on an open circuit breaker.

    Args:
        words: The words; the value is the state of the breaker.
        of_hub: Returns a clause if the breaker is that of a hub, and nothing otherwise.
    """
    objective = of_hub(f"; the hub's latency objective is {words.objective}")
    return Definition(
        name="ToolHubCircuitOpen",
        severity="ticket",
        after=60.0,
        summary=f"{words.subject} is not called: its circuit breaker is open (state {words.value}, 0 is closed)"
        f"{objective}.",
        description="It failed so often in a row that calls are refused without being made, but for a probe after each "
        "cooldown. It stays open until a probe succeeds, which needs somebody who asks.",
    )


def catalog_changing(context: Context, words: Words) -> Definition:
    """Define the alert on a list of tools that changes again and again."""
    return Definition(
        name="ToolCatalogChanging",
        severity="ticket",
        summary=f"{words.subject} changes what it lists: {words.value} times in {context.window(HOUR)}; the limit is "
        f"{context.thresholds.catalog_changes:g}.",
        description="Each change makes the model's prompt cache worthless. Two servers of different versions behind "
        "one address look like this. Lists that differ by who asks do not: each caller's is compared with its own.",
    )


def definitions_changed(context: Context, words: Words) -> Definition:
    """Define the alert on tools that differ from the lock file."""
    return Definition(
        name="ToolDefinitionsChanged",
        severity="ticket",
        summary=f"{words.subject} lists tools that differ from the lock file: runs met {words.value} in "
        f"{context.window(HOUR)}; each tool counts once in a run.",
        description="What a tool says has changed since it was reviewed, or nobody has reviewed the tool. Runs go "
        "without these tools, unless the agent has on_change='report'.",
    )


def cache_misses(context: Context, words: Words) -> Definition:
    """Define the alert on a cache that rarely helps."""
    return Definition(
        name="DiscoveryCacheMissStorm",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject} is asked too often: {words.value} of the lookups in its cache missed in "
        f"{context.window(TEN_MINUTES)}; the limit is {share(context.thresholds.cache_misses)}, its latency objective "
        f"{words.objective}.",
        description="The hub is slow, or nearly, and its cache spares it nothing: the time to live is too short, the "
        "key has too many values, or each run makes a provider of its own.",
    )
