"""Metrics of the newest conventions, which an application opts in to."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.metrics import (
    OPERATION_DURATION,
    TIME_PER_OUTPUT_CHUNK,
    TIME_TO_FIRST_CHUNK,
    TOKEN_USAGE,
    Metric,
)

OPT_IN: Final = "gen_ai_latest_experimental"
"""Value in `OTEL_SEMCONV_STABILITY_OPT_IN` that asks for them instead of those of release 1.41."""

TOKEN_MODALITY: Final = "gen_ai.token.modality"  # noqa: S105  (an attribute name)

USAGE_COUNTERS: Final = {
    name: Metric(
        "counter",
        "{token}",
        f"gen_ai.client.inference.usage.{name}",
        f"Tokens of model calls: {name}.",
        (*OPERATION_DURATION.attributes, TOKEN_MODALITY),
    )
    for name in (
        "input_tokens",
        "output_tokens",
        "cache_read.input_tokens",
        "cache_write.input_tokens",
        "reasoning.output_tokens",
    )
}
"""Counters by the name of what they count; a call whose usage is unknown adds 0."""

CALL_TOKENS: Final = {
    name: Metric(
        "histogram",
        "{token}",
        f"gen_ai.client.inference.operation.{name}",
        f"Tokens of one model call: {name}.",
        OPERATION_DURATION.attributes,
        TOKEN_USAGE.buckets,
    )
    for name in ("input_tokens", "output_tokens")
}

RENAMED: Final = {
    OPERATION_DURATION.name: "gen_ai.client.inference.duration",
    TIME_TO_FIRST_CHUNK.name: "gen_ai.client.inference.time_to_first_chunk",
    TIME_PER_OUTPUT_CHUNK.name: "gen_ai.client.inference.time_per_output_chunk",
}
"""Names there of metrics of release 1.41."""
