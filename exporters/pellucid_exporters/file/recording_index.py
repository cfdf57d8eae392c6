"""Index of a recording in JSON Lines: its runs, and where their lines are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import from_json

from pellucid import semconv
from pellucid_exporters.file.stored_lines import is_own, log_line_row, run_row, times_of
from pellucid_exporters.stored.rows import FAULTS, INTERRUPTED, PART_OF, RunRow, count_of, status_of, text_of, total_of
from pellucid_exporters.stored.run_facts import answer_of, caller_of, name_of, question_of, tags_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pellucid_exporters.file.stored_lines import Line

Place: TypeAlias = "tuple[Path, int, int]"
"""File, offset and length of a line."""

_TYPES: Final = frozenset({"run", "span", "event", "boundary", "catalog", "log"})
_ROWS: Final = {"model": "models", "tool": "tools", "hub": "hubs"}


@dataclass(slots=True)
class Index:
    """Places of lines by run, and the runs.

    Attributes:
        state: Names, sizes and times of the files.
        is_foreign: Whether there are lines, and none that a recording has.
    """

    state: tuple[Any, ...]
    runs: dict[str, RunRow] = field(default_factory=dict)
    spans: dict[str, dict[str, Place]] = field(default_factory=dict)
    events: dict[str, list[Place]] = field(default_factory=dict)
    log_lines: dict[str, list[Place]] = field(default_factory=dict)
    catalogs: dict[str, Place] = field(default_factory=dict)
    is_foreign: bool = False


@dataclass(slots=True)
class _Span:
    """Parts of a span by which its run is found."""

    trace_id: str
    parent_span_id: str | None
    run_id: str | None
    place: Place


class _Builder:
    """Builder of an index. Spans come in the order of their ends, children before their parents."""

    def __init__(self) -> None:
        self.index = Index(state=())
        self._spans: dict[str, _Span] = {}
        self._roots: dict[str, str | None] = {}
        self._parts: dict[str, dict[str, set[str]]] = {}
        self._exported: set[str] = set()

    def add(self, line: Line, place: Place) -> None:
        """Add a line.

        Raises:
            KeyError, TypeError, ValueError: it is not what it says to be.
        """
        kind = line["type"]
        if kind == "run":
            run = run_row(line)
            self.index.runs[run.run_id] = run
            self._exported.add(run.run_id)
        elif kind == "catalog":
            self.index.catalogs[line["digest"]] = place
        elif kind == "event":
            self.index.events.setdefault(line["run_id"], []).append(place)
        elif kind == "log":
            self.index.log_lines.setdefault(log_line_row(line).run_id, []).append(place)
        elif kind == "span":
            self._add_span(line, place)

    def _add_span(self, line: Line, place: Place) -> None:
        run_id = line["run_id"] if "run_id" in line else line["attributes"][semconv.RUN_ID] if is_own(line) else None
        times_of(line)  # refuse what has none
        self._spans[line["span_id"]] = _Span(line["trace_id"], line.get("parent_span_id"), run_id, place)
        if run_id is not None and "run_id" not in line and run_id not in self._exported:
            self._add_to_run(line, run_id)

    def _add_to_run(self, line: Line, run_id: str) -> None:
        """Add what a boundary says of its run."""
        attributes, (start, end) = line["attributes"], times_of(line)
        run = self.index.runs.get(run_id)
        if run is None:
            run = RunRow(
                run_id=run_id,
                trace_id=line["trace_id"],
                agent="",
                service=line.get("service") or "",
                status=INTERRUPTED,
                start=start,
                faults=0,
            )
        iterations = count_of(attributes, semconv.ITERATIONS) or count_of(attributes, semconv.ITERATION) or 0
        run = replace(
            run,
            agent=text_of(attributes, semconv.AGENT_NAME) or run.agent,
            iterations=max(run.iterations, iterations),
            start=min(run.start, start),
            seen_until=max(run.seen_until or start, end or start),
            replay_of=text_of(attributes, semconv.REPLAY_OF) or run.replay_of,
        )
        phase = text_of(attributes, semconv.PHASE) or ""
        if phase == semconv.RUN:
            self._roots[run_id] = line.get("parent_span_id")
            run = replace(
                run,
                start=start,
                end=end,
                status=status_of(attributes),
                error_type=text_of(attributes, semconv.ERROR_TYPE),
                error=line.get("status_text"),
                input_tokens=count_of(attributes, semconv.USAGE_INPUT_TOKENS),
                output_tokens=count_of(attributes, semconv.USAGE_OUTPUT_TOKENS),
                cost=attributes.get(semconv.COST_USD),
                stop_reason=text_of(attributes, semconv.STOP_REASON),
                question=question_of(attributes) or run.question,
                answer=answer_of(attributes),
                conversation=name_of(attributes.get(semconv.CONVERSATION_ID)),
                version=name_of(attributes.get(semconv.AGENT_VERSION)),
                tags=tuple(sorted(tags_of(attributes))),
            )
        else:
            run = _with_boundary(run, phase, attributes)
        if phase in PART_OF:
            part, name = PART_OF[phase]
            if value := text_of(attributes, name):
                self._parts.setdefault(run_id, {}).setdefault(_ROWS[part], set()).add(value)
        self.index.runs[run_id] = run

    def finish(self) -> Index:
        """Assign the spans of other libraries to runs, and runs to the runs that they are nested in."""
        index = self.index
        traces: dict[str, str] = {}
        for run in sorted(index.runs.values(), key=lambda run: run.start):
            traces.setdefault(run.trace_id, run.run_id)
        for span_id, span in self._spans.items():
            run_id = self._run_of(span_id) or traces.get(span.trace_id, "")
            index.spans.setdefault(run_id, {})[span_id] = span.place
        for run_id, run in index.runs.items():
            if run_id not in self._exported:
                names = self._parts.get(run_id, {})
                parts: dict[str, Any] = {name: tuple(sorted(values)) for name, values in names.items()}
                outer = self._run_of(self._roots.get(run_id))
                parent = outer if outer != run_id else None
                index.runs[run_id] = replace(
                    run,
                    spans=len(index.spans[run_id]),
                    parent_run_id=parent,
                    seen_until=run.seen_until if run.end is None else None,
                    **parts,
                )
        self._add_totals()
        return index

    def _add_totals(self) -> None:
        runs = self.index.runs
        nested: dict[str, list[str]] = {}
        for run in runs.values():
            nested.setdefault(run.parent_run_id or "", []).append(run.run_id)
        for run_id in nested.keys() & runs.keys():
            tree = [run_id]
            for each in tree:  # grows
                tree += [inner for inner in nested.get(each, ()) if inner not in tree]
            usages = [(runs[each].input_tokens, runs[each].output_tokens, runs[each].cost) for each in tree]
            runs[run_id] = replace(runs[run_id], total=total_of(usages))

    def _run_of(self, span_id: str | None) -> str | None:
        """Return the run of a span, or of the nearest span around it that is known to belong to one."""
        seen: set[str] = set()
        while span_id is not None and span_id not in seen and (span := self._spans.get(span_id)) is not None:
            if span.run_id is not None:
                return span.run_id
            seen.add(span_id)
            span_id = span.parent_span_id
        return None


def index_of(files: Sequence[Path], state: tuple[Any, ...]) -> Index:
    """Return the index of some files.

    Raises:
        OSError: one of them cannot be read.
    """
    builder = _Builder()
    has_lines = is_known = False
    for place, content in _lines(files):
        has_lines = True
        try:
            line = from_json(content)
            if isinstance(line, dict) and line.get("type") in _TYPES:
                builder.add(line, place)
                is_known = True
        except (KeyError, TypeError, ValueError):
            continue  # torn by a crash, or of another program
    index = builder.finish()
    index.state, index.is_foreign = state, has_lines and not is_known
    return index


def _lines(files: Iterable[Path]) -> Iterator[tuple[Place, bytes]]:
    for path in files:
        offset = 0
        with path.open("rb") as file:
            for content in file:
                if not content.isspace():
                    yield (path, offset, len(content)), content
                offset += len(content)


def read(places: Iterable[Place]) -> list[dict[str, Any]]:
    """Return the lines at some places."""
    lines: list[dict[str, Any]] = []
    for path, group in _by_file(places).items():
        with path.open("rb") as file:
            for offset, length in group:
                file.seek(offset)
                lines.append(from_json(file.read(length)))
    return lines


def _by_file(places: Iterable[Place]) -> dict[Path, list[tuple[int, int]]]:
    found: dict[Path, list[tuple[int, int]]] = {}
    for path, offset, length in places:
        found.setdefault(path, []).append((offset, length))
    return found


def _with_boundary(run: RunRow, phase: str, attributes: Mapping[str, Any]) -> RunRow:
    """Return a run with what a boundary within it says: failures, and who asked for what."""
    faults = (run.faults or 0) + (text_of(attributes, semconv.OUTCOME) in FAULTS)
    if phase == semconv.DISCOVERY and run.user is None and run.tenant is None:
        user, tenant = caller_of(attributes)
        return replace(run, faults=faults, user=user, tenant=tenant)
    question = run.question or (question_of(attributes) if phase == semconv.INFERENCE else None)
    return replace(run, faults=faults, question=question)
