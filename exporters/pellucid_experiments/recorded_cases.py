"""Cases of recorded runs, and of the rows of a table."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.messages import Message, TextPart, dump_messages
from pellucid.scores import Case
from pellucid.telemetry.secrets.masking import MASK
from pellucid.types import JSONValue
from pellucid_experiments.case_files import CaseError
from pellucid_experiments.naming import is_of_experiment
from pellucid_replay import Recording, Tape, contents
from pellucid_replay.passes import passes_of

if TYPE_CHECKING:
    from pellucid_exporters import StoreReader
    from pellucid_exporters.stored.scores import ScoreCondition

_DIGITS: Final = 12
"""Digits of the id of a run that name its case."""

_MASKED: Final = f"A secret was masked when the run was recorded, as {MASK}."
_PAGE: Final = 500


def case_of_run(
    recording: Recording,
    run_id: str,
    *,
    expected: JSONValue = None,
    expect_answer: bool = False,
    tags: Collection[str] = (),
) -> Case:
    """Return a recorded run as a case: its question, and where it came from. Secrets stay masked.

    Args:
        recording: The store, or another reader.
        run_id: Id of the run, or an unambiguous beginning of it.
        expected: Expected answer.
        expect_answer: Whether the recorded answer is the expected one.
        tags: Words to select the case by.

    Raises:
        TapeError: there is no such run, or its question was not recorded, or was cut.
        CaseError: it is to have its answer, and has none.
    """
    tape = Tape.load(recording, run_id)
    passes = passes_of(tape)
    if expect_answer:
        expected = _answer(contents.parsed(passes[-1].root, semconv.OUTPUT_MESSAGES, list) or [])
        if expected is None:
            raise CaseError(f"run {tape.run_id} has no answer that is recorded; give the expected one")
    messages = passes[0].input
    case = Case(
        id=tape.run_id[:_DIGITS],
        input=_plain(messages) or messages,
        expected=expected,
        tags=tuple(tags),
        source=tape.run_id,
    )
    is_masked = MASK in str([dump_messages(messages), expected])
    return replace(case, note=_MASKED) if is_masked else case


def _plain(messages: tuple[Message, ...]) -> str | None:
    """Return the text of a single message of a user; None if there is more to it."""
    if len(messages) != 1 or messages[0].role != "user":
        return None
    parts = messages[0].parts
    return parts[0].content if len(parts) == 1 and isinstance(parts[0], TextPart) else None


def _answer(messages: list[Any]) -> str | None:
    parts = messages[-1].get("parts", ()) if messages else ()
    return "".join(str(part.get("content", "")) for part in parts if part.get("type") == TextPart.type) or None


def runs_scored(reader: StoreReader, wanted: ScoreCondition, since: int) -> Iterator[str]:
    """Yield the ids of the runs that started since a time (nanoseconds) and have such a score, the newest first.

    The newest score of a name counts. Replays and runs of experiments are left out.
    """
    before: int | None = None
    while rows := reader.runs(score=wanted, replays=False, before=before, limit=_PAGE):
        for row in rows:
            if row.start >= since and not is_of_experiment(row):
                yield row.run_id
        if len(rows) < _PAGE or rows[-1].start < since:
            return
        before = rows[-1].start


def cases_of_table(
    path: str | os.PathLike[str],
    *,
    input_column: str,
    expected_column: str | None = None,
    id_column: str | None = None,
    tags: Collection[str] = (),
) -> Iterator[Case]:
    """Yield the cases of a file of comma-separated values, whose first line has the names of the columns.

    Args:
        path: The file.
        input_column: Column of the questions.
        expected_column: Column of the expected answers.
        id_column: Column of the ids; by default they are the file's name and the number of the row.
        tags: Words to select the cases by.

    Raises:
        CaseError: the file cannot be read, or has no such column, or a row has no question.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, strict=True)
            known = list(rows.fieldnames or ())
            for column in (input_column, expected_column, id_column):
                if column is not None and column not in known:
                    raise CaseError(f"{file}: there is no column {column!r}; there are {', '.join(known) or 'none'}")
            for number, row in enumerate(rows, start=1):
                if not row[input_column]:
                    raise CaseError(f"{file}, line {rows.line_num}: the column {input_column!r} is empty; fill it")
                yield Case(
                    id=row[id_column] if id_column else f"{file.stem}-{number}",
                    input=row[input_column],
                    expected=row[expected_column] or None if expected_column else None,
                    tags=tuple(tags),
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise CaseError(f"{file}: the table cannot be read ({why}); write UTF-8, with commas between") from None
