"""Rows that a reader of the store returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid import semconv
from pellucid.semconv.scores import JUDGES
from pellucid_exporters.stored.quantiles import Quantile, Sample
from pellucid_exporters.stored.scores import ScoreRow

RUNNING: Final = "running"
"""Status of a run or span that has begun and not ended."""

INTERRUPTED: Final = "interrupted"
"""Status of a run or span whose process ended first."""

AWAITING: Final = frozenset({"awaiting_approval", "awaiting_tools"})
"""Values of `pellucid.stop_reason` of runs that wait for a person or for results; also statuses of runs."""

STATUSES: Final = (
    RUNNING,
    semconv.COMPLETED,
    *sorted(AWAITING),
    semconv.FAILED,
    semconv.TIMEOUT,
    semconv.CANCELLED,
    semconv.LOST,
    INTERRUPTED,
)
"""Statuses of runs."""

STOP_REASONS: Final = (
    *("stop", "length", "content_filter", "tool_call", "error"),
    *("max_iterations", "max_tool_calls", "max_cost", "max_tokens", "max_model_calls", "budget"),
    *sorted(AWAITING),
)
"""Values of `pellucid.stop_reason`: finish reasons of models, limits, and what runs wait for."""

FAULTS: Final = frozenset({semconv.FAILED, semconv.TIMEOUT, semconv.LOST, "error", INTERRUPTED})
"""Statuses of runs and spans that went wrong."""

PART_OF: Final[Mapping[str, tuple[str, str]]] = {
    semconv.INFERENCE: ("model", semconv.REQUEST_MODEL),
    semconv.DISPATCH: ("tool", semconv.TOOL_NAME),
    semconv.DISCOVERY: ("hub", semconv.PROVIDER_ID),
}
"""Kind and attribute of the part of a run that a phase uses."""

EXPERIMENTS: Final = "experiment/"
"""Beginning of `gen_ai.conversation.id` of the runs of experiments."""

AGENT, JUDGE, EXPERIMENT, ALL = "agent", "judge", "experiment", "all"
"""Kinds of runs; `agent` are those that are neither of judges nor of experiments."""

KINDS: Final[Mapping[str, str]] = {JUDGE: JUDGES, EXPERIMENT: EXPERIMENTS}
"""Beginning of the conversation of the runs of each other kind."""

BODY: Final = "$body"
"""Key of the digest that stands for a large text."""


def kind_of(conversation: str | None) -> str:
    """Return the kind of a run, by its conversation."""
    return next((kind for kind, start in KINDS.items() if (conversation or "").startswith(start)), AGENT)


def total_of(usages: Sequence[tuple[int | None, int | None, float | None]]) -> Total | None:
    """Return the sum of the usage of a run and of the runs nested in it: tokens of input and output, and dollars."""
    if len(usages) < 2:  # noqa: PLR2004  (the run itself)
        return None
    columns = [[value for value in column if value is not None] for column in zip(*usages, strict=True)]
    inputs, outputs, cost = (sum(column) if column else None for column in columns)
    return Total(runs=len(usages), input_tokens=inputs, output_tokens=outputs, cost=cost)


def text_of(attributes: Mapping[str, Any], name: str) -> str | None:
    """Return an attribute that is a text; `None` if it is missing, or of another type: anybody can set it."""
    value = attributes.get(name)
    return value if isinstance(value, str) else None


def count_of(attributes: Mapping[str, Any], name: str) -> int | None:
    """Return an attribute that is a number of something; `None` if it is missing, or anything else."""
    value = attributes.get(name)
    return value if type(value) is int and value >= 0 else None


def status_of(attributes: Mapping[str, Any]) -> str:
    """Return the status of a run that has ended, from the attributes of its span."""
    outcome, reason = text_of(attributes, semconv.OUTCOME), text_of(attributes, semconv.STOP_REASON)
    if outcome == semconv.COMPLETED and reason in AWAITING:
        return reason
    return outcome or semconv.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Tokens and US dollars of a run together with those of the runs nested in it; `None` if none are known.

    Attributes:
        runs: Number of runs, itself included.
    """

    runs: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run. Times are nanoseconds since the epoch; `cost` is in US dollars.

    Attributes:
        parent_run_id: Id of the run with the tool call that it is nested in.
        status: One of `STATUSES`.
        input_tokens, output_tokens, cost: Its own, without those of nested runs; so far, if it has not ended.
        total: Those of the run and of all runs nested in it; `None` if there are none.
        seen_until: If it is interrupted, when its process was last seen.
        replay_of: Id of the recorded run that it replays.
        stop_reason: Its `pellucid.stop_reason`, if it has returned a result.
        question, answer: Beginnings of its input and output, in one line; `None` if they were not recorded.
        user, tenant: Its caller, as its discoveries recorded it.
        conversation, version: Ids of the conversation, and of the version of the agent.
        faults: Number of boundaries within it that failed; `None` if it was not recorded.
        tags: Words by which it is found, as its caller gave them.
        scores: The newest score of each name, by name, without explanations.
    """

    run_id: str
    trace_id: str
    parent_run_id: str | None = None
    agent: str
    service: str
    status: str
    start: int
    end: int | None = None
    iterations: int = 0
    error_type: str | None = None
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    total: Total | None = None
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    hubs: tuple[str, ...] = ()
    spans: int = 0
    replay_of: str | None = None
    seen_until: int | None = None
    stop_reason: str | None = None
    question: str | None = None
    answer: str | None = None
    user: str | None = None
    tenant: str | None = None
    conversation: str | None = None
    version: str | None = None
    faults: int | None = None
    tags: tuple[str, ...] = ()
    scores: tuple[ScoreRow, ...] = ()

    @property
    def is_measured(self) -> bool:
        """True if alerts and means count the run: it is neither a replay nor a run of an experiment."""
        return self.replay_of is None and not (self.conversation or "").startswith(EXPERIMENTS)


DERIVED: Final = frozenset({"total", "scores"})
"""Fields of `RunRow` that follow from other rows: nested runs and events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span of a run. Large texts among the attributes are `{"$body": digest}`.

    Attributes:
        sequence: Number of the span in its run, in start order.
        events: Objects with `name`, `time` and `attributes`.
        links: Objects with `trace_id` and `span_id`.
        scope: Name of the library that recorded it, its instrumentation scope; empty if it is not known.
        seen_until: If it is interrupted, when its process was last seen.
    """

    run_id: str
    sequence: int
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    name: str
    phase: str | None = None
    iteration: int | None = None
    start: int
    end: int | None = None
    status: str
    error_type: str | None = None
    error: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    links: Sequence[Mapping[str, Any]] = ()
    kind: str = "internal"
    scope: str = ""
    seen_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of a run."""

    run_id: str
    time: int
    name: str
    span_id: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRow:
    """Requests to one hub in a window of time, by the minute in which they ended.

    Attributes:
        objective: Seconds.
        slo: Share of requests that should meet the objective, if the hub declares one.
        calls: Number of requests.
        failures: Number of requests that ended otherwise than with a list of tools.
        outcomes: Number of requests by `pellucid.outcome`.
        by_minute: Counts of the buckets by the start of the minute (nanoseconds); one more than there are bounds.
        bounds: Upper bounds of the buckets, inclusive, in seconds.
        samples: Durations by the start of the minute.
        exemplars: Run id and span id of the latest request in a bucket, by the bucket's index.
        p50, p95, p99: Quantiles of the durations.
        cache: Number of discoveries by cache outcome.
        in_flight_since: Start of the oldest discovery that has not ended.
        late: Number of requests over the objective, less the delay of a busy process, by minute.
        delayed: Number of requests of whose measured duration half or more was the delay of a busy process.
        last_success: Start of the latest minute in the window with a request that succeeded.
        unanswered_since: Start of the first of the latest minutes in which no request was answered.
    """

    provider_id: str
    objective: float | None = None
    slo: float | None = None
    calls: int = 0
    failures: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    by_minute: Mapping[int, Sequence[int]] = field(default_factory=dict)
    bounds: Sequence[float] = ()
    samples: Mapping[int, Sequence[Sample]] = field(default_factory=dict)
    exemplars: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    p50: Quantile | None = None
    p95: Quantile | None = None
    p99: Quantile | None = None
    cache: Mapping[str, int] = field(default_factory=dict)
    in_flight_since: int | None = None
    late: Mapping[int, int] = field(default_factory=dict)
    delayed: int = 0
    last_success: int | None = None
    unanswered_since: int | None = None

    def budget(self, otherwise: float) -> float:
        """Return the share of requests that may be over the objective. Args: otherwise: that of hubs without an SLO."""
        return otherwise if self.slo is None else 1 - self.slo


SUMMED: Final = (
    semconv.USAGE_INPUT_TOKENS,
    semconv.USAGE_OUTPUT_TOKENS,
    semconv.COST_USD,
    semconv.CATALOG_CHANGED,
    semconv.USAGE_CACHE_READ_INPUT_TOKENS,
)
"""Attributes that `CallRow` sums; of `pellucid.catalog.changed`, how often it is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """Boundaries with equal labels that ended in a window of time.

    Attributes:
        process: Number of the process that began their runs.
        service: Name of its service.
        phase: Their phase, such as `inference`.
        labels: Attributes that are labels of metrics, such as `error.type`.
        calls: Number of boundaries.
        durations: Seconds that each of them took, ascending.
        sums: Sums of the attributes in `SUMMED`.
        start: Time at which the earliest of them began.
        end: Time at which the latest of them ended.
        run_id, span_id: The latest of them.
        step: Number of the step of time in which they ended, from the beginning of the window; 0 without steps.
    """

    process: int
    service: str
    phase: str
    labels: Mapping[str, str]
    calls: int
    durations: Sequence[float]
    sums: Mapping[str, float]
    start: int
    end: int
    run_id: str
    span_id: str
    step: int = 0
