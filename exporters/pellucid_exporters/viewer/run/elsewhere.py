"""Links between a run and the dashboards and traces of a fleet."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid_exporters.stored import text
from pellucid_exporters.stored.durations import end_of
from pellucid_exporters.stored.rows import RunRow
from pellucid_exporters.viewer.pages import query, reader_of

DASHBOARD: Final = "pellucid-runs-and-models"
"""The dashboard with the figures of an agent."""

_AROUND: Final = 15 * 60 * 10**9
_MILLISECOND: Final = 10**6


def run_of_trace(request: Request) -> Response:
    """Show the outermost run of a trace, the first one if there are several."""
    trace_id = request.path_params["trace_id"]
    runs = reader_of(request).trace(trace_id)
    known = {run.run_id for run in runs}
    for run in runs:
        if run.parent_run_id not in known:
            return RedirectResponse(f"/runs/{quote(run.run_id, safe='')}/")
    raise HTTPException(404, f"There is no run of the trace {text.cut(trace_id, 80)!r} in this store.")


def in_grafana(request: Request, run: RunRow) -> str | None:
    """Return the address of the agent's dashboard around a run; None if no Grafana is known."""
    base: str | None = request.app.state.grafana
    if base is None:
        return None
    until = end_of(run, time.time_ns()) + _AROUND
    times = {"from": (run.start - _AROUND) // _MILLISECOND, "to": until // _MILLISECOND}
    return f"{base}/d/{DASHBOARD}?{query(**times, **{'var-agent': run.agent})}"
