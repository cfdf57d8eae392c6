"""All numbers that alerts compare with, in one place; `pellucid rules export --set name=value` changes them."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, cast

from pellucid.errors import ConfigError
from pellucid_exporters.alerting.outcomes import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True)
class HubThresholds:
    """Limits of the alerts on tool hubs.

    An objective is not here: each tool provider declares its own (`objective=`), which the rules read as a gauge.

    Attributes:
        slow_budget: Share of a hub's round trips that may take longer than its objective, unless its provider declares
            one (`slo=0.99`); 0.01 is one of a hundred.
        slow_fast_burn: Multiple of the budget that pages if the last 5 min and the last hour spend it; at 14.4 a budget
            of 30 days lasts 50 hours.
        slow_slow_burn: Multiple that opens a ticket if the last 30 min and the last 6 h spend it; at 6 it lasts 5 days.
        slow_steady_burn: Multiple that opens a ticket if the last 6 h and the last 3 days spend it.
        slow_min_round_trips: Minimum requests in the longer window for a notification.
        slow_streak: Consecutive slow requests that open a ticket, however seldom the hub is called.
        hanging_after: Seconds without an answer to any request after which a hub is silent.
        hanging_objectives: The same in multiples of the hub's own objective, if that is longer.
        hub_failing: Share of requests that fail.
        hub_failing_min: Failed requests in 5 min.
        hub_down_after: Seconds without a successful request although there were requests.
        hub_down_min: Failed requests in 10 min, in addition to `hub_down_after`.
        catalog_changes: Changes of one hub's catalogue in an hour, as one process sees it.
        cache_misses: Share of the lookups in a provider's cache that miss.
        cache_misses_min: Misses in 10 min.
        cache_misses_near: Share of the hub's objective that its p95 takes at least; faster hubs may be asked often.
    """

    slow_budget: float = 0.01
    slow_fast_burn: float = 14.4
    slow_slow_burn: float = 6.0
    slow_steady_burn: float = 1.0
    slow_min_round_trips: float = 20.0
    slow_streak: float = 3.0
    hanging_after: float = 15.0
    hanging_objectives: float = 3.0
    hub_failing: float = 0.1
    hub_failing_min: float = 5.0
    hub_down_after: float = 600.0
    hub_down_min: float = 3.0
    catalog_changes: float = 3.0
    cache_misses: float = 0.5
    cache_misses_min: float = 60.0
    cache_misses_near: float = 0.8


@dataclass(frozen=True, kw_only=True)
class WorkThresholds:
    """Limits of the alerts on tools, models, runs, cost and pending approvals.

    Attributes:
        tool_failing: Share of a tool's calls that fail.
        tool_failing_min: Failed calls in 10 min.
        tool_refusals: Values of `error.type` with which a call was not made: neither a failure nor a call.
        model_slow: Seconds that the slowest twentieth of a model's calls takes at least (p95). From 81.92 on, where the
            last bucket of classic histograms ends, only native ones reach it.
        model_slow_min: Calls in 10 min.
        model_failing: Share of a model's calls that fail.
        model_failing_min: Failed calls in 10 min.
        run_failing: Share of an agent's runs that fail.
        run_failing_min: Failed runs in 10 min.
        tokens_per_hour: Tokens of one model and service in an hour, input and output.
        cost_per_hour: Cost of one model and service in an hour, in US dollars.
        budget_spent: Share of a budget that is spent in its period. Local stores know of shares from 0.8 on.
        approvals_wait: Seconds without a decision while calls wait.
        approvals_many: Waiting calls of one tool, regardless of decisions.
        score_objectives: Means below which a score is too low, by its name: `correct=0.9,helpful=0.8`.
        score_drop: Share of its mean in the seven days before by which the mean of a score may fall.
        score_min: Scores of one name, agent and version in an hour.
        scorer_failing: Share of the scores of one name that have an error in place of a judgement.
        scorer_failing_min: Such scores in an hour.
    """

    tool_failing: float = 0.2
    tool_failing_min: float = 5.0
    tool_refusals: tuple[str, ...] = REFUSALS
    model_slow: float = 30.0
    model_slow_min: float = 20.0
    model_failing: float = 0.1
    model_failing_min: float = 5.0
    run_failing: float = 0.1
    run_failing_min: float = 5.0
    tokens_per_hour: float = 10_000_000.0
    cost_per_hour: float = 50.0
    budget_spent: float = 0.8
    approvals_wait: float = 900.0
    approvals_many: float = 20.0
    score_objectives: tuple[str, ...] = ()
    score_drop: float = 0.1
    score_min: float = 20.0
    scorer_failing: float = 0.5
    scorer_failing_min: float = 5.0


@dataclass(frozen=True, kw_only=True)
class DurableThresholds:
    """Limits of the alerts on durable runs and external calls.

    Attributes:
        external_overdue: Seconds for which a tool's oldest external call may owe its result, if it has no deadline.
        external_deadline_used: Share of the time until its deadline that a call may use, if it has one.
        external_failing: Share of the results of a tool's asynchronous calls that are failures, or missed the deadline.
        external_failing_min: Such results in 30 min.
        external_rejected: Results of one tool's calls in 10 min that were late, or differed from the first.
        durable_due: Seconds for which a due run may wait for a worker.
        durable_behind: Seconds that the slowest twentieth of an agent's due runs waits for a worker at least (p95).
        durable_behind_min: Claims of an agent's runs in 10 min.
        durable_retrying: Seconds since the first failure in a row of a run that is retrying.
        durable_recoveries: Runs of one agent in an hour that were taken over from workers that had died or hung.
    """

    external_overdue: float = 3600.0
    external_deadline_used: float = 0.5
    external_failing: float = 0.2
    external_failing_min: float = 5.0
    external_rejected: float = 3.0
    durable_due: float = 120.0
    durable_behind: float = 10.0
    durable_behind_min: float = 5.0
    durable_retrying: float = 900.0
    durable_recoveries: float = 3.0


@dataclass(frozen=True, kw_only=True)
class ServerThresholds:
    """Limits of the alerts on tool servers, seen from inside; each declares its own objective.

    Attributes:
        server_slow: Share of a server's requests that may take longer than its objective.
        server_slow_min: Requests in 10 min.
        server_failing: Share of a server's requests that fail.
        server_failing_min: Failed requests in 10 min.
        server_hanging_after: Seconds for which a request may be in flight.
        server_hanging_objectives: The same in multiples of the server's own objective, if that is longer.
    """

    server_slow: float = 0.05
    server_slow_min: float = 20.0
    server_failing: float = 0.2
    server_failing_min: float = 5.0
    server_hanging_after: float = 60.0
    server_hanging_objectives: float = 10.0


@dataclass(frozen=True, kw_only=True)
class StackThresholds:
    """Limits of the alerts on Collector, Prometheus, Alertmanager and Jaeger.

    Attributes:
        collector_queue: Share of an exporter's queue that is used.
        collector_lost: Spans, metric points and log records in 10 min that a Collector refused, or failed to send.
        notifications_lost: Alerts in 3 min that Prometheus failed to send to an Alertmanager.
        rules_failing: Evaluations of rules of one group in 10 min that failed, or were left out.
        messages_failed: Messages in 10 min that Alertmanager failed to send.
        prometheus_disk: Share of the size to which Prometheus limits its data.
        prometheus_writes_failed: Failed writes and compactions of Prometheus' data in 10 min.
        traces_free: Bytes that are free on the disk with Jaeger's data.
    """

    collector_queue: float = 0.8
    collector_lost: float = 1.0
    notifications_lost: float = 1.0
    rules_failing: float = 3.0
    messages_failed: float = 1.0
    prometheus_disk: float = 0.9
    prometheus_writes_failed: float = 1.0
    traces_free: float = 2_000_000_000.0


@dataclass(frozen=True, kw_only=True)
class UpkeepThresholds:
    """Limits of the alerts on observability itself, and where alerts link to.

    Attributes:
        process_busy: Seconds by which the event loop of a process delays a tenth of its waiting runs at least.
        telemetry_lost: Items of telemetry, dropped or failed, in 10 min.
        target_missing_after: Seconds for which a target of Prometheus or all of a service is gone.
        target_seen_within: Seconds for which a service that has measured something is expected to be there.
        jobs: Regular expression of the jobs whose targets must be up, in addition to those seen to run agents. `.+` is
            all jobs.
        runbook_base: Address of the runbooks for those on call. If it ends with a slash, each has a page of its own
            below it, as the relay of alerts serves them; otherwise it is one page with a section for each.
        dashboard_base: Address of Grafana.
    """

    process_busy: float = 0.1
    telemetry_lost: float = 1.0
    target_missing_after: float = 300.0
    target_seen_within: float = 3600.0
    jobs: str = "pellucid|stack"
    runbook_base: str = "http://localhost:9095/runbooks/"
    dashboard_base: str = "http://localhost:3000"


@dataclass(frozen=True, kw_only=True)
class Thresholds(UpkeepThresholds, StackThresholds, ServerThresholds, DurableThresholds, WorkThresholds, HubThresholds):
    """All limits that alerts compare with; each group describes its own.

    A number of failures or calls that an alert needs keeps a single failed call in a quiet night from paging.
    """

    def __post_init__(self) -> None:
        for name, value in self.numbers().items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value:g}: a threshold is a number greater than 0")
        for word in self.tool_refusals:
            if not re.fullmatch(r"[\w.:-]+", word):
                raise ConfigError(f"tool_refusals: {word!r} is not a value of error.type; give words such as not_found")
        objectives_of(self.score_objectives)
        for name in SHARES:
            if self.numbers()[name] >= 1:
                raise ConfigError(f"{name}={self.numbers()[name]:g}: a share is less than 1, 0.1 is a tenth")
        for name in ("slow_fast_burn", "slow_slow_burn", "slow_steady_burn"):
            burn = self.numbers()[name]
            if burn * self.slow_budget >= 1:
                raise ConfigError(
                    f"{name}={burn:g} times slow_budget={self.slow_budget:g} is never reached; make one of them smaller"
                )

    def numbers(self) -> dict[str, float]:
        """Return the thresholds that are numbers, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, float | int)}

    def lines(self) -> list[str]:
        """Return all thresholds as `name=value`, as `set` accepts them."""
        return [f"{name}={_text(getattr(self, name))}" for name in _NAMES]

    def set(self, assignments: Iterable[str]) -> Thresholds:
        """Return a copy with changed thresholds.

        Args:
            assignments: Each is `name=value`; several values are separated by commas.

        Raises:
            ConfigError: a threshold is unknown, or its value is invalid.
        """
        changes: dict[str, object] = {}
        for assignment in assignments:
            name, given, text = assignment.partition("=")
            if name not in _NAMES or not given:
                raise ConfigError(_unknown(name, bool(given)))
            changes[name] = _parse(name, text, getattr(self, name))
        return replace(self, **changes)  # type: ignore[arg-type]  # parsed as the type of the replaced value


def objectives_of(assignments: Iterable[str]) -> dict[str, float]:
    """Return the objectives of scores by their names.

    Raises:
        ConfigError: one is not `name=value`.
    """
    found: dict[str, float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (re.fullmatch(r"[\w.:/-]{1,128}", name) and math.isfinite(value) and value > 0):
            raise ConfigError(
                f"score_objectives: {assignment!r} is no objective; give the name of a score and its least mean, "
                f"such as correct=0.9"
            )
        found[name] = value
    return found


SHARES: Final = (
    "slow_budget",
    "hub_failing",
    "cache_misses",
    "cache_misses_near",
    "tool_failing",
    "model_failing",
    "run_failing",
    "score_drop",
    "scorer_failing",
    "external_failing",
    "external_deadline_used",
    "server_slow",
    "server_failing",
    "collector_queue",
    "prometheus_disk",
)
_NAMES: Final = [field.name for field in fields(Thresholds)]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _unknown(name: str, given: bool) -> str:
    if name in _NAMES and not given:
        return f"--set {name}: which value? Write --set {name}=VALUE"
    close = difflib.get_close_matches(name, _NAMES, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(_NAMES)}"
    return f"there is no threshold {name!r}; {advice}"


def _parse(name: str, text: str, present: object) -> object:
    if isinstance(present, str):
        return text
    if isinstance(present, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return type(cast("float", present))(text)
    except ValueError:
        raise ConfigError(f"--set {name}={text}: this is not a number") from None
