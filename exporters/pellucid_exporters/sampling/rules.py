"""Options of tail sampling, for `configure(tail_sampling=...)`, and the rules that decide which runs to keep."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from pellucid import semconv
from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

Reason: TypeAlias = Literal["failed", "slow", "costly", "fault", "share", "shutdown", "dropped"]
"""Reason why a run was kept or dropped; values of `pellucid.sampling.reason`."""

_BAD_OUTCOMES: Final = (semconv.FAILED, semconv.TIMEOUT, semconv.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSampling:
    """Rules that keep the spans of failed, slow and costly runs, and of a share of the others.

    A run that failed or timed out is always kept. Metrics, events and log lines include dropped runs.

    Attributes:
        share: Share of the other runs, from 0 to 1; chosen by trace id, so that all services with this share agree.
        failed_phases: Keep runs in which a discovery, model call, tool or nested run failed, even if the run continued.
        slow_hubs: Keep runs with a `discover_tools` span longer than the objective of its provider.
        slower_than: Keep runs that take more seconds than this.
        costlier_than: Keep runs that cost more US dollars; a run whose cost is unknown is not kept by this.
        more_tokens_than: Keep runs that use more tokens, input and output together; unknown usage counts as 0.
        max_spans: Maximum number of ended spans that wait for their runs; beyond it, the oldest run is decided.
        max_runs: Maximum number of runs in progress; beyond it, the oldest is decided.
    """

    share: float = 0.1
    failed_phases: bool = True
    slow_hubs: bool = True
    slower_than: float | None = None
    costlier_than: float | None = None
    more_tokens_than: int | None = None
    max_spans: int = 16_384
    max_runs: int = 1_024

    def __post_init__(self) -> None:
        if not (_is_number(self.share) and 0 <= self.share <= 1):
            raise ConfigError(f"TailSampling(share={self.share!r}): must be between 0 and 1")
        if self.slower_than is not None and not (_is_number(self.slower_than) and self.slower_than > 0):
            raise ConfigError(f"TailSampling(slower_than={self.slower_than!r}): must be more than 0 seconds")
        for name in ("costlier_than", "more_tokens_than"):
            bound = getattr(self, name)
            if bound is not None and not (_is_number(bound) and bound >= 0):
                raise ConfigError(f"TailSampling({name}={bound!r}): must be 0 or more")
        for name in ("max_spans", "max_runs"):
            limit = getattr(self, name)
            if not (isinstance(limit, int) and _is_number(limit) and limit >= 1):
                raise ConfigError(f"TailSampling({name}={limit!r}): must be a whole number of at least 1")

    def shares(self, trace_id: int) -> bool:
        """Return whether a trace is in the share, by the algorithm of OpenTelemetry's `TraceIdRatioBased`."""
        bound = TraceIdRatioBased.get_bound_for_rate(self.share)
        return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < bound


class Findings:
    """State of the rules for one run.

    Attributes:
        reason: Reason why the run is kept, if one is known already.
        error: Exception raised by a rule.
    """

    __slots__ = ("_options", "_started", "_tokens", "_usd", "error", "reason")

    def __init__(self, options: TailSampling, started: int) -> None:
        """Begin with nothing found. Args: started: nanoseconds since the epoch."""
        self._options = options
        self._started = started
        self._usd = 0.0
        self._tokens = 0
        self.reason: Reason | None = None
        self.error: Exception | None = None

    def add(self, span: ReadableSpan, objectives: Callable[[], Mapping[str, float]], *, is_outermost: bool) -> None:
        """Apply the rules to an ended span; a rule that raises keeps the run."""
        try:
            reason = self._judge(span, objectives, is_outermost=is_outermost)
        except Exception as error:  # noqa: BLE001  (counted; a sampler never reaches the run)
            self.error, reason = error, "fault"
        self.reason = self.reason or reason

    def so_far(self) -> Reason | None:
        """Return the reason to keep a run that has not ended, or None."""
        bound = self._options.slower_than
        is_slow = bound is not None and time.time_ns() - self._started > bound * 1e9
        return self.reason or ("slow" if is_slow else None)

    def _judge(
        self, span: ReadableSpan, objectives: Callable[[], Mapping[str, float]], *, is_outermost: bool
    ) -> Reason | None:
        attributes: Mapping[str, Any] = span.attributes or {}
        phase = attributes.get(semconv.PHASE)
        if phase is None:
            return None
        if attributes.get(semconv.OUTCOME) in _BAD_OUTCOMES and (is_outermost or self._options.failed_phases):
            return "failed"
        if phase == semconv.DISCOVERY and self._options.slow_hubs:
            objective = objectives().get(attributes.get(semconv.PROVIDER_ID, ""))
            return "slow" if objective is not None and _seconds(span) > objective else None
        return self._judge_run(span, attributes) if phase == semconv.RUN else None

    def _judge_run(self, span: ReadableSpan, attributes: Mapping[str, Any]) -> Reason | None:
        """Apply the rules to a run or nested run: the usage of nested runs is not included in that of the outer one."""
        options = self._options
        self._usd += attributes.get(semconv.COST_USD) or 0.0
        self._tokens += attributes.get(semconv.USAGE_INPUT_TOKENS) or 0
        self._tokens += attributes.get(semconv.USAGE_OUTPUT_TOKENS) or 0
        if options.slower_than is not None and _seconds(span) > options.slower_than:
            return "slow"
        is_costly = options.costlier_than is not None and self._usd > options.costlier_than
        is_long = options.more_tokens_than is not None and self._tokens > options.more_tokens_than
        return "costly" if is_costly or is_long else None


def _seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
