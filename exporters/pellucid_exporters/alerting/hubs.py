"""Alerts on tool hubs: slow, hanging, failing, down, backed off, changing, or queried too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pellucid_exporters.alerting.definition import (
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

    def limit(self, thresholds: Thresholds) -> float:
        """Return the share of late round trips."""
        return self.factor_of(thresholds) * thresholds.slow_budget


BURNS: Final = (
    Burn(name="fast", factor="slow_fast_burn", short=FIVE_MINUTES, long=HOUR, severity="page", after=120.0),
    Burn(name="slow", factor="slow_slow_burn", short=HALF_HOUR, long=SIX_HOURS, severity="ticket", after=900.0),
)


def slow(context: Context, burn: Burn, words: Words) -> Definition:
    """Define the alert on round trips that are slower than the hub's objective."""
    thresholds = context.thresholds
    recent, long = context.window(burn.short), context.window(burn.long)
    return Definition(
        name="ToolHubSlow",
        severity=burn.severity,
        after=burn.after,
        labels={"burn": burn.name},
        summary=f"{words.subject} is slow: {words.value} of its round trips in {recent} took longer than its objective "
        f"of {words.objective}; p95 is {words.p95}.",
        description=f"At most {share(thresholds.slow_budget)} of round trips should take longer than what the hub "
        f"declared. More than {share(burn.limit(thresholds))} did in the last {recent} and in the last {long}, "
        f"{burn.factor_of(thresholds):g} times as many. Runs wait for them.",
    )


def hanging(context: Context, words: Words) -> Definition:
    """Define the alert on a fetch that does not end."""
    thresholds = context.thresholds
    return Definition(
        name="ToolHubHanging",
        severity="page",
        keep=_AFTERMATH,  # also: each attempt ends at its timeout, and the age of the next one starts at 0
        summary=f"{words.subject} hangs: a fetch of its tools has been under way for {words.value}; "
        f"its objective is {words.objective}.",
        description=f"It has not answered for more than {seconds(thresholds.hanging_after)}, and for more than "
        f"{thresholds.hanging_objectives:g} times its objective. No histogram shows this before the fetch ends. "
        f"All runs that need its tools wait.",
    )


def failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed round trips."""
    return Definition(
        name="ToolHubFailing",
        severity="page",
        after=120.0,
        summary=f"{words.subject} fails: {words.value} of its round trips in {context.window(FIVE_MINUTES)}; the limit "
        f"is {share(context.thresholds.hub_failing)}.",
        description="Unless a reliability rule or stale_if_error stands in for it, each failure ends a run.",
    )


def down(context: Context, words: Words) -> Definition:
    """Define the alert on attempts without a success."""
    return Definition(
        name="ToolHubDown",
        severity="page",
        after=60.0,
        keep=_AFTERMATH,
        summary=f"{words.subject} is down: {words.value} attempts in {context.window(TEN_MINUTES)} got nothing new "
        f"from it; its last success is {words.last_success} ago, the limit "
        f"{seconds(context.thresholds.hub_down_after * context.scale)}, its latency objective {words.objective}.",
        description="No round trip succeeded, although runs requested one. They use an old catalogue, or fail.",
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


def cache_misses(context: Context, words: Words) -> Definition:
    """Define the alert on a cache that rarely helps."""
    return Definition(
        name="DiscoveryCacheMissStorm",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject} is asked too often: {words.value} of the lookups in its cache missed in "
        f"{context.window(TEN_MINUTES)}; the limit is {share(context.thresholds.cache_misses)}, its latency objective "
        f"{words.objective}.",
        description="A cache that misses this often costs each run a round trip. The time to live is too short, the "
        "key has too many values, or each run makes a provider of its own.",
    )
