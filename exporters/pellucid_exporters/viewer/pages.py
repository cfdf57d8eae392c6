"""Parts that all pages share: the reader, the templates, and the run of a URL."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pellucid import semconv
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts import Alert, evaluate
from pellucid_exporters.stored.content import RunContent, parse
from pellucid_exporters.stored.durations import took
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import FAULTS, RunRow, SpanRow
from pellucid_exporters.viewer.shortening import marked, middle
from pellucid_exporters.viewer.trees import tree
from pellucid_exporters.viewer.zones import ago

ALERTS_AGE: Final = 2.0
"""Seconds for which the alerts that were computed are shown."""

MOST_KEPT: Final = 200_000
"""Characters of content that a page keeps to use it again."""

LARGEST: Final = 2**63 - 1
"""Largest number of nanoseconds in a store."""


def reader_of(request: Request) -> Reader:
    """Return the reader of the application."""
    reader: Reader = request.app.state.reader
    return reader


def run_of(request: Request, run_id: str) -> RunRow:
    """Return a run.

    Raises:
        HTTPException: 404, there is no such run.
    """
    run = reader_of(request).run(run_id)
    if run is None:
        raise HTTPException(
            404, f"There is no run {text.cut(run_id, 80)!r} in this store. It may have been deleted by age."
        )
    return run


def alerts_of(request: Request) -> list[Alert]:
    """Return the alerts that fire, which all pages count: computed at most once in `ALERTS_AGE`."""
    state = request.app.state
    now = time.monotonic()
    if now - state.alerts_at > ALERTS_AGE:
        state.alerts, state.alerts_at = evaluate(reader_of(request), time.time_ns()), now
    alerts: list[Alert] = state.alerts
    return alerts


def render(request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Return a page."""
    state = request.app.state
    alerts = len(alerts_of(request))
    shared = {"path": request.url.path, "label": state.label, "jaeger": state.jaeger, "firing": alerts}
    shared["origin"] = str(request.base_url).rstrip("/")
    shared["has_durable"] = state.durable is not None
    page = _templates().get_template(name).render({**shared, **values})
    return HTMLResponse(page, status)


def content_of(request: Request, spans: Sequence[SpanRow]) -> RunContent:
    """Return the content of spans of one run, of which little is kept."""
    return RunContent(reader_of(request), spans, MOST_KEPT)


def query(**parameters: Any) -> str:
    """Return a query string without the parameters that are empty."""
    return urlencode({name: value for name, value in parameters.items() if value not in {None, ""}})


def whole(
    value: str | None, problem: str = "Times in the address must be numbers of nanoseconds since the epoch."
) -> int | None:
    """Return a whole number of a URL, at most the largest that a store holds; `None` if it is empty.

    Raises:
        HTTPException: 400 with this problem, it is no number.
    """
    if not value:
        return None
    if not value.isdecimal() or len(value) > len(str(LARGEST)):
        raise HTTPException(400, problem)
    return min(int(value), LARGEST)


def number(name: str, value: str | None) -> float | None:
    """Return a number of a filter in a URL; `None` if it is empty.

    Raises:
        HTTPException: 400, it is no number, or negative.
    """
    if not value or not value.strip():
        return None
    return not_negative(value, f"The filter {name} must be a number, 0 or more.")


def not_negative(text: str, problem: str) -> float:
    """Return a number of a URL.

    Raises:
        HTTPException: 400 with this problem, it is no finite number, or negative.
    """
    try:
        given = float(text)
    except ValueError:
        given = math.nan
    if not math.isfinite(given) or given < 0:
        raise HTTPException(400, problem)
    return given


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pellucid_exporters.viewer"),
        autoescape=True,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        age=text.age,
        ago=ago,
        clock=text.clock,
        count=text.count,
        cut=text.cut,
        duration=text.duration,
        frozen=frozenset,
        lines_cut=text.lines_cut,
        marked=marked,
        middle=middle,
        money=text.money,
        nested=text.nested,
        ns=lambda seconds: int(seconds * 1e9),
        quantile=text.quantile,
        parsed=parse,
        seconds=text.seconds,
        shown=functools.partial(json.dumps, ensure_ascii=False, default=str),
        short=text.short,
        size=text.size,
        stamp=text.stamp,
        took=took,
        tree=tree,
    )
    environment.tests["array"] = lambda value: isinstance(value, list)
    environment.globals.update(FAULTS=FAULTS, MOST=text.MOST, query=query, semconv=semconv)
    environment.globals.update(money=text.money, number=text.count, seconds=text.seconds)
    return environment


def _finalize(value: Any) -> Any:
    """Prepare a value of a template for escaping."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return text.visible(value) if isinstance(value, str) else value
