"""Summary of a run's result, for notebooks. Imported when one is shown."""

from __future__ import annotations

from typing import Any, Final

from pellucid.text import excerpt

MOST_OUTPUT: Final = 2_000
"""Maximum characters of an output that a notebook shows of a result."""


def summary(result: Any) -> str:
    """Return a summary of a `RunResult`, whose `repr` has the whole conversation."""
    counts = {"input": result.usage.input_tokens, "output": result.usage.output_tokens}
    tokens = [f"{kind} tokens {'unknown' if count is None else count}" for kind, count in counts.items()]
    cost = [] if result.usage.cost is None else [f"${result.usage.cost:.4g}"]
    waits = [
        (len(items), kind) for items, kind in ((result.approvals, "approvals"), (result.external, "results")) if items
    ]
    lines = [
        f"RunResult {result.status} ({result.stop_reason}), run {result.run_id}",
        ", ".join([f"{result.iterations} iterations", f"{len(result.messages)} messages", *tokens, *cost]),
        *(f"waits for {number} {kind}" for number, kind in waits),
        *([] if waits else [f"output: {excerpt(repr(result.output), MOST_OUTPUT)}"]),
    ]
    return "\n".join(lines)
