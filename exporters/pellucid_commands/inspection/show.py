"""The `show` subcommand: one run as a tree, or one of its spans with its content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.cli import Command
from pellucid.errors import PellucidError
from pellucid.semconv.budgets import BUDGET_KIND, BUDGET_REACHED
from pellucid_commands.inspection.contents import content_lines
from pellucid_commands.inspection.options import RUN, add_store_options, run_of
from pellucid_commands.inspection.output import cut, flat, middle, say, say_json, terminal_width
from pellucid_commands.inspection.runs import SHOWN, judgement
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored import text
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.documents import content_document, log_document, run_document, span_document
from pellucid_exporters.stored.durations import took
from pellucid_exporters.stored.log_lines import LogLineCounts, LogLineWindow, log_line
from pellucid_exporters.stored.nested import nested_runs
from pellucid_exporters.stored.rows import BODY, FAULTS, RunRow, SpanRow, Total

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid_exporters.stored.scores import ScoreRow

_WIDEST: Final = 60
"""Columns of names and their branches, if the output is read by a program."""
_FACTS_WIDTH: Final = 100
"""Columns that a wide terminal keeps for numbers and facts."""
_LONGEST_FACT: Final = 60
_LONGEST_LINE: Final = 1_000
LINES: Final = 100
LINES_IN_JSON: Final = 1_000
"""Log lines that are printed."""
MOST_SCORES: Final = 20
"""Scores that are printed."""
_IN_DOLLARS: Final = frozenset({"max_cost", "cost"})
_FACTS: Final = (
    semconv.PROVIDER_ID,
    semconv.DISCOVERY_CACHE,
    semconv.REQUEST_MODEL,
    semconv.USAGE_INPUT_TOKENS,
    semconv.USAGE_OUTPUT_TOKENS,
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid show`."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--span", type=int, metavar="N", help="only this span, by its number in the tree, with content")
    parser.add_argument(
        "--logs", action="store_true", help=f"the last {LINES} log lines, too; with --json, the last {LINES_IN_JSON:,}"
    )
    parser.add_argument("--content", action="store_true", help="what went in and out of each boundary, too")
    add_store_options(parser)


def run(options: Namespace) -> int:
    """Print the run, and return the exit code.

    Raises:
        PellucidError: there is no such run or span.
        StoreError: there is no store that this version can use.
    """
    reader = StoreReader(options.store)
    found = run_of(reader, options.run)
    spans = reader.spans(found.run_id)
    content = RunContent(reader, spans)
    most = LINES_IN_JSON if options.json else LINES
    if options.span is not None:
        span = _span(spans, options.span)
        _show_span(content, span, reader.log_lines(found.run_id, span.span_id, limit=most), as_json=options.json)
        return 0
    log = reader.log_lines(found.run_id, limit=most) if options.logs else None
    if options.json:
        shown = [_document(content, span) if options.content else span_document(span) for span in spans]
        scores = [dataclasses.asdict(score) for score in reader.scores(found.run_id)]
        logged = {"log": log_document(log)} if log is not None else {}
        say_json({"run": run_document(found), "scores": scores, "spans": shown, **logged})
    else:
        counts = reader.log_line_counts(found.run_id)
        say(*_heading(found), *_counted(counts), *_scores(reader.scores(found.run_id)), *_faults(spans), "")
        nested = nested_runs(reader, found, reader.trace(found.trace_id))
        placed = list(tree(spans))
        room = name_room(placed)
        content.load(spans, _FACTS)
        for prefix, below, span in placed:
            say(cut(span_line(prefix, span, content, room=room)))
            if span.span_id in nested:
                inner = nested[span.span_id]
                say(cut(f"      {below}run of {flat(inner.agent)}  {inner.run_id[:SHOWN]}"))
            if options.content and span.phase is not None:
                say(*(f"      {below}{line}" for line in content_lines(content, span)))
        if log is not None:
            say(*_log(log, found.start, {span.span_id: f"{span.sequence:>4}" for span in spans}))
    return 0


def _span(spans: Sequence[SpanRow], number: int) -> SpanRow:
    if not 0 <= number < len(spans):
        raise PellucidError(f"--span {number}: the run has spans 0 to {len(spans) - 1}")
    return spans[number]


def _document(content: RunContent, span: SpanRow) -> dict[str, object]:
    return {**span_document(span), "content": content_document(content, span)}


def _heading(found: RunRow) -> Iterator[str]:
    yield f"run       {found.run_id}  trace {found.trace_id}"
    nested = f", nested in {found.parent_run_id[:SHOWN]}" if found.parent_run_id else ""
    yield f"agent     {flat(found.agent)} ({flat(found.service)}){nested}"
    yield f"status    {found.status}, started {text.stamp(found.start)}, {took(found)}, iterations {found.iterations}"
    total = f"; {text.nested(found.total.runs)} {_usage(found.total)}" if found.total is not None else ""
    yield f"tokens    {_usage(found)}{total}"
    if found.error or found.error_type:
        yield f"error     {found.error_type or 'error'}: {flat(found.error)}"


def _counted(counts: LogLineCounts) -> Iterator[str]:
    """Yield how many log lines there are, unless there are none."""
    kinds = [(counts.total, "line"), (counts.errors, "error"), (counts.warnings, "warning")]
    shown = [f"{text.count(number)} {kind}{'s' if number != 1 else ''}" for number, kind in kinds if number]
    if shown:
        yield f"log       {', '.join(shown)}; shown with --logs"


def _log(log: LogLineWindow, start: int, places: Mapping[str, str]) -> Iterator[str]:
    """Yield log lines with their times after a start, each after the number of its span."""
    if not log.rows:
        return
    yield ""
    is_cut = len(log.rows) < log.total
    yield f"log lines: the last {len(log.rows)} of {text.count(log.total)}" if is_cut else "log lines:"
    for row in log.rows:
        yield f"{places.get(row.span_id, '')}  {log_line(row, start, _LONGEST_LINE)}"


def _scores(scores: Sequence[ScoreRow]) -> Iterator[str]:
    """Yield the scores of a run, the newest first."""
    for score in scores[: -MOST_SCORES - 1 : -1]:
        facts = [f"{flat(score.name)}={judgement(score)}"]
        if score.label and score.value is not None:
            facts.append(flat(score.label))
        facts += [f"by {flat(score.by)}"] if score.by else []
        facts += [text.clock(score.time), flat(score.explanation)]
        yield cut(f"score     {'  '.join(facts)}".rstrip())
    if len(scores) > MOST_SCORES:
        yield f"          {text.count(len(scores) - MOST_SCORES)} earlier scores; all: --json"


def _usage(row: RunRow | Total) -> str:
    tokens = f"{text.count(row.input_tokens)} in, {text.count(row.output_tokens)} out"
    return f"{tokens}, cost {text.money(row.cost)}"


def _faults(spans: Sequence[SpanRow]) -> Iterator[str]:
    """Yield the spans that went wrong, the cause before what it made fail."""
    faults = [span for span in spans if span.status in FAULTS and span.phase != semconv.RUN]
    if faults:
        yield ""
    for span in sorted(faults, key=lambda span: span.end or span.start):
        yield cut(f"! {span.sequence:>3}  {flat(span.name)}  {span.status}  {_problem(span)}".rstrip())


def _problem(span: SpanRow) -> str:
    return flat(": ".join(part for part in (span.error_type, span.error) if part))


def tree(spans: Sequence[SpanRow]) -> Iterator[tuple[str, str, SpanRow]]:
    """Yield each span with its prefix and that of its children, at any depth; spans without a parent come first."""
    known = {span.span_id for span in spans}
    children: dict[str | None, list[SpanRow]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in known else None
        children.setdefault(parent, []).append(span)
    waiting = [("", "", span) for span in reversed(children.get(None, []))]
    while waiting:
        prefix, indent, span = waiting.pop()
        below = children.get(span.span_id, [])
        yield prefix, indent + ("│  " if below else "   "), span
        branch, continued = "└─ ", "   "
        for child in reversed(below):
            waiting.append((indent + branch, indent + continued, child))
            branch, continued = "├─ ", "│  "


def name_room(placed: Sequence[tuple[str, str, SpanRow]]) -> int:
    """Return the columns for names and their branches: in a terminal up to half of it, so that the rest has room."""
    width = terminal_width()
    longest = max((len(prefix) + len(flat(span.name)) for prefix, _, span in placed), default=0)
    return _WIDEST if width is None else min(longest, max(width // 2, width - _FACTS_WIDTH))


def span_line(prefix: str, span: SpanRow, content: RunContent | None = None, *, room: int = _WIDEST) -> str:
    """Return the line of a span in its tree.

    Args:
        prefix: Its branch; of a deep one the last columns are shown.
        span: The span.
        content: Content of the run, for attributes that are large texts.
        room: Columns for the branch and the name.
    """
    name = flat(span.name)
    iteration = f"[{span.iteration}]" if span.iteration is not None else ""
    facts = [] if span.phase is None else [_fact(content, span, key) for key in _FACTS if key in span.attributes]
    facts += _reasons(span)
    is_marked = span.status in FAULTS or span.status == semconv.CANCELLED
    status = [f"{span.status.upper()} {_problem(span)}".rstrip()] if is_marked else []
    words = "  ".join(flat(word) for word in [*status, *facts] if word not in name)
    if len(prefix) > room // 2:
        prefix = f"…{prefix[len(prefix) - room // 2 + 1 :]}"
    shown = f"{prefix}{middle(name, max(1, room - len(prefix)))}"
    return f"{span.sequence:>4}  {shown:<{room}} {iteration:<5}{took(span):>10}  {words}".rstrip()


def _fact(content: RunContent | None, span: SpanRow, key: str) -> str:
    value = span.attributes[key]
    if isinstance(value, Mapping):  # a large text
        value = content.text(span, key) if content is not None else None
    return middle(flat(str(value if value is not None else "(large text)")), _LONGEST_FACT)


def _reasons(span: SpanRow) -> Iterator[str]:
    """Yield why a run stopped, if not because the model had finished, and what compaction left out of a request."""
    attributes = span.attributes
    if span.phase == semconv.COMPOSE and (left_out := attributes.get(semconv.COMPOSE_LEFT_OUT)):
        yield f"{text.count(left_out)} message{'s' if left_out != 1 else ''} left out"
    if span.phase != semconv.RUN or (reason := attributes.get(semconv.STOP_REASON, "stop")) == "stop":
        return
    kind = attributes.get(BUDGET_KIND, reason)
    shown = text.money if kind in _IN_DOLLARS else "{:,.0f}".format
    name = f" {attributes[BUDGET_REACHED]}, {kind}" if BUDGET_REACHED in attributes else ""
    used, limit = (attributes.get(key) for key in (semconv.LIMIT_USED, semconv.LIMIT_VALUE))
    yield f"{reason}{name}" + (f": {shown(used)} of {shown(limit)}" if limit is not None else "")


def _show_span(content: RunContent, span: SpanRow, log: LogLineWindow, *, as_json: bool) -> None:
    if as_json:
        say_json({"span": {**_document(content, span), "log": log_document(log)}})
        return
    say(span_line("", span, content).lstrip(), "")
    say(*content_lines(content, span), "", "attributes:")
    say(*(f"  {name}: {_short(value)}" for name, value in sorted(span.attributes.items())))
    if span.events:
        say("", "events:")
    for event in span.events:
        facts = ", ".join(f"{name}={_short(value)}" for name, value in event.get("attributes", {}).items())
        say(f"  {text.stamp(event['time'])}  {event['name']}  {facts}".rstrip())
    say(*_log(log, span.start, {}))


def _short(value: object) -> str:
    if isinstance(value, Mapping) and BODY in value:
        return "(large text)"
    return flat(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


COMMAND: Final = Command(
    name="show",
    help="Show one run of the local store: its spans, and what went in and out.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid show 96c287f9",
        "pellucid show 96c287f9 --span 5",
        "pellucid show 96c287f9 --logs",
        "pellucid show 96c287f9 --content --json",
    ),
)
