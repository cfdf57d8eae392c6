"""Token metrics of model calls, in the conventions of release 1.41 or, on request, the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pellucid import semconv
from pellucid.messages import Usage
from pellucid.telemetry import Boundary, Scope

_MODALITIES: Final = ("text", "image", "audio")


def count_tokens(scope: Scope, b: Boundary, labels: Mapping[str, Any], usage: Usage) -> None:
    """Record the known token counts of a model call."""
    if not scope.is_measured:
        return
    if scope.instruments.counts_usage:
        _count_by_modality(scope, b, labels, usage)
        return
    for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        if tokens is not None:
            scope.count(semconv.TOKEN_USAGE, tokens, {**labels, semconv.TOKEN_TYPE: kind}, b.context)


def count_failed(scope: Scope, b: Boundary, labels: Mapping[str, Any], error_type: str) -> None:
    """Record a failed model call, whose unknown usage the newest conventions count as 0."""
    if scope.is_measured and scope.instruments.counts_usage:
        _count_by_modality(scope, b, {**labels, semconv.ERROR_TYPE: error_type}, Usage())


def _count_by_modality(scope: Scope, b: Boundary, labels: Mapping[str, Any], usage: Usage) -> None:
    totals = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read.input_tokens": usage.cache_read_input_tokens,
        "cache_write.input_tokens": usage.cache_write_input_tokens,
        "reasoning.output_tokens": usage.reasoning_output_tokens,
    }
    for name, total in totals.items():
        per_call = semconv.CALL_TOKENS.get(name)
        if total is None and per_call is None:
            continue
        parts = {modality: usage.by_modality.get(f"{modality}.{name}", 0) for modality in _MODALITIES}
        unknown = max(0, (total or 0) - sum(parts.values()))
        counted = {modality: count for modality, count in {**parts, "unknown": unknown}.items() if count}
        for modality, count in (counted or {"unknown": 0}).items():
            scope.count(semconv.USAGE_COUNTERS[name], count, {**labels, semconv.TOKEN_MODALITY: modality}, b.context)
        if per_call is not None and total is not None:
            scope.count(per_call, total, labels, b.context)
