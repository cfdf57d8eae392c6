"""Tapes: what the telemetry of a run holds, as the source of another run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from pellucid import semconv
from pellucid.errors import ConfigError, JournalError
from pellucid_exporters.recordings import open_recording
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.rows import BODY, SpanRow
from pellucid_replay.checking import checked_catalog, expect, well_typed

FORMAT: Final = "pellucid.tape"
VERSION: Final = 1
MARK: Final = f'{{"format":"{FORMAT}"'
"""Beginning of the file of a tape."""

INTERRUPTED: Final = "interrupted"
"""Outcome of what has no end, because its process or its pass ended first."""

_MANY: Final = 100


class TapeError(ConfigError):
    """A recording cannot be replayed; the text names what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapedSpan:
    """A span of a recorded run. Times are in nanoseconds since the epoch.

    Attributes:
        end: None if the process ended first, or the pass of a durable run because a step was not written.
        outcome: Value of `pellucid.outcome`; `interrupted` if it ended so.
        attributes: Attributes with their whole texts.
        events: Objects with `name`, `time` and `attributes`.
    """

    run_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    name: str
    phase: str
    iteration: int | None = None
    start: int
    end: int | None = None
    outcome: str
    error_type: str | None = None
    error: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()

    @property
    def seconds(self) -> float:
        """Duration; 0 if the process ended first."""
        return (self.end - self.start) / 1e9 if self.end is not None else 0.0

    def get(self, attribute: str) -> Any:
        """Return an attribute, or None."""
        return self.attributes.get(attribute)


@dataclass(frozen=True, slots=True)
class Tape:
    """Recording of a run, of the runs nested in it, and of those that it continued after approvals or results.

    Attributes:
        run_id: Value of `pellucid.run.id`.
        spans: Spans of all these runs in the order of their starts.
        catalogs: Catalogues by `pellucid.catalog.digest`, as the store keeps them.
    """

    run_id: str
    spans: Sequence[TapedSpan] = field(repr=False)
    catalogs: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @classmethod
    def load(cls, source: str | os.PathLike[str] | Recording, run_id: str | None = None) -> Tape:
        """Load a run from a local store, a file of `configure(file=...)`, or the file of a tape.

        Args:
            source: The path, or a reader of stored telemetry.
            run_id: Id of the run, or an unambiguous beginning of it; not needed for the file of a tape, or one run.

        Raises:
            TapeError: there is no such run, or the file is none of these.
        """
        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            if _is_tape(path):
                return _read(path, run_id)
            source = open_recording(path)
        return _of(source, run_id if run_id is not None else _only_run(source))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tape to a file of JSON Lines, which a test can load."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        head = {"format": FORMAT, "version": VERSION, "run_id": self.run_id}
        catalogs = [{"catalog": digest, **catalog} for digest, catalog in self.catalogs.items()]
        lines = [head, *catalogs, *map(_plain, self.spans)]
        file.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines), encoding="utf-8")


def _plain(span: TapedSpan) -> dict[str, Any]:
    return {name: value for name, value in asdict(span).items() if value not in (None, (), {})}


def _is_tape(path: Path) -> bool:
    """Return whether a file is that of a tape.

    Raises:
        TapeError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError as error:
        raise TapeError(
            f"{str(path)!r} cannot be read ({error.strerror}); name a store, a recording or a tape"
        ) from error


def _read(path: Path, run_id: str | None) -> Tape:
    known = {item.name for item in fields(TapedSpan)}
    spans: list[TapedSpan] = []
    catalogs: dict[str, Mapping[str, Any]] = {}
    try:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        version = expect(head["version"], int)
        for line in lines if version <= VERSION else ():
            if "catalog" in line:
                catalogs[line.pop("catalog")] = checked_catalog(line)
            else:
                spans.append(_checked(TapedSpan(**{name: line[name] for name in line if name in known})))
        tape = Tape(expect(head["run_id"], str), spans, catalogs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TapeError(f"the tape {str(path)!r} is damaged; save it again from the store") from error
    if version > VERSION:
        raise TapeError(f"the tape {str(path)!r} has version {version}; upgrade Pellucid")
    if run_id is not None and not tape.run_id.startswith(run_id):
        raise TapeError(f"the tape {str(path)!r} is of run {tape.run_id!r}, not of {run_id!r}")
    return tape


def _only_run(recording: Recording) -> str:
    """Return the id of the only run of a recording.

    Raises:
        TapeError: it has none, or several.
    """
    roots = [row.run_id for row in recording.runs(limit=_MANY) if row.parent_run_id is None]
    if len(roots) != 1:
        raise TapeError(
            f"the recording has {len(roots) or 'no'} runs; name one: `pellucid runs` lists those of a store"
        )
    return str(roots[0])


def _checked(span: TapedSpan) -> TapedSpan:
    """Return a span of a file.

    Raises:
        TypeError, ValueError: a field is of another type than a span has.
    """
    for text in (span.run_id, span.name, span.phase, span.outcome):
        expect(text, str)
    for identifier in (span.trace_id, span.span_id, "0" if span.parent_span_id is None else span.parent_span_id):
        int(expect(identifier, str), 16)
    for number in (span.start, span.iteration or 0, span.end or 0):
        expect(number, int)
    for text in (span.error_type or "", span.error or ""):
        expect(text, str)
    for event in expect(span.events or [], list):
        expect(event["name"], str)
        expect(event["attributes"], dict)
    attributes = well_typed(expect(span.attributes or {}, dict))
    return replace(span, attributes=attributes, events=tuple(span.events or ()))


def _of(recording: Recording, run_id: str) -> Tape:
    """Return the tape of a run in a recording."""
    row = recording.run(run_id)
    if row is None:
        raise TapeError(f"there is no run {run_id!r} in this recording, or several start with it")
    rows = [span for other in recording.trace(row.trace_id) for span in recording.spans(other.run_id) if span.phase]
    texts = recording.bodies({reference for span in rows for reference in _references(span.attributes.values())})
    spans = sorted((_taped(span, texts) for span in rows), key=lambda span: (span.start, span.end is None))
    needed = _needed(row.run_id, spans)
    spans = [span for span in spans if span.run_id in needed]
    digests = {span.get(semconv.CATALOG_DIGEST) for span in spans if span.phase == semconv.DISCOVERY} - {None}
    return Tape(row.run_id, spans, dict(recording.catalogs(digests)))


def _needed(run_id: str, spans: Sequence[TapedSpan]) -> set[str]:
    """Return the ids of a run, of those that it continued, and of those nested in them."""
    roots = {span.run_id: span for span in spans if span.phase == semconv.RUN}
    owners = {span.span_id: span.run_id for span in spans}
    needed: set[str] = set()
    current: str | None = run_id
    while current is not None and current not in needed:
        needed.add(current)
        current = roots[current].get(semconv.RESUMED_FROM) if current in roots else None
    while True:
        nested = {
            root.run_id
            for root in roots.values()
            if root.parent_span_id is not None and owners.get(root.parent_span_id) in needed
        } - needed
        if not nested:
            return needed
        needed |= nested


def _taped(row: SpanRow, texts: Mapping[str, str]) -> TapedSpan:
    assert row.phase is not None  # the others are left out
    attributes = {
        name: texts.get(value[BODY]) if _is_reference(value) else value for name, value in row.attributes.items()
    }
    is_interrupted = row.error_type == JournalError.error_type  # its pass ended there, as if the process had
    return TapedSpan(
        run_id=row.run_id,
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_span_id=row.parent_span_id,
        name=row.name,
        phase=row.phase,
        iteration=row.iteration,
        start=row.start,
        end=row.end if not is_interrupted else None,
        outcome=row.status if not is_interrupted else INTERRUPTED,
        error_type=row.error_type,
        error=row.error,
        attributes=well_typed({name: value for name, value in attributes.items() if value is not None}),
        events=tuple(row.events),
    )


def _references(values: Iterable[Any]) -> Iterable[str]:
    return (value[BODY] for value in values if _is_reference(value))


def _is_reference(value: object) -> bool:
    return isinstance(value, Mapping) and BODY in value
