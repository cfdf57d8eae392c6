"""Keep the whole of a long result with its beginning, so that the model can read on. For agents with a `context`."""

from __future__ import annotations

from typing import Any

from pellucid.compaction.results import beginning
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.state import Run
from pellucid.run.tool_results import LARGE, PARTS, in_thread, is_content, is_small, to_json
from pellucid.telemetry import Boundary


def paged(handler: Handler) -> Handler:
    """Return a handler that keeps a text or JSON that is too long, and returns its beginning."""

    async def run(run: Run, b: Boundary, call: Call) -> Any:
        value = await handler(run, b, call)
        most = run.limits.max_result_bytes
        if run.conversation.fitting is None or call.id == "" or isinstance(value, PARTS) or is_content(value):
            return value
        if not isinstance(value, str) and most >= LARGE and is_small(value):
            return value
        try:
            text = value if isinstance(value, str) else (await in_thread(to_json, value))[1]
        except Exception:  # noqa: BLE001  (what cannot be turned into JSON is a failure of the call)
            return value
        data = text.encode("utf-8", "replace")
        return beginning(call.id, data, most) if len(data) > most else value

    return run
