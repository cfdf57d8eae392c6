"""Cases of recorded runs, and of the rows of a table."""

from __future__ import annotations

import csv
import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.feature_events import ScoreRecorded
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

_DIGITS: Final = 12
"""Digits of the id of a run that name its case."""

_MASKED: Final = f"A secret was masked when the run was recorded, as {MASK}."
_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


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


@dataclass(frozen=True, slots=True)
class ScoreFilter:
    """What the score of a run must be: `thumb<0.5`, `thumb=0`, or a label, `thumb=down`."""

    name: str
    sign: str
    value: float | str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the filter that a text stands for.

        Raises:
            ConfigError: it stands for none.
        """
        found = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=|<|>|=)\s*(.+?)\s*", text)
        if found is None:
            raise ConfigError(f"{text!r:.200} is no filter of scores; write one such as 'thumb<0.5' or 'thumb=down'")
        name, sign, value = found.groups()
        try:
            return cls(name, sign, float(value))
        except ValueError:
            if sign != "=":
                raise ConfigError(f"{text!r:.200}: {value!r} is no number; a label is compared by =") from None
            return cls(name, sign, value)

    def fits(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a recorded score is so."""
        if payload.get("score") != self.name:
            return False
        if isinstance(self.value, str):
            return payload.get("label") == self.value
        value = payload.get("value")
        return isinstance(value, (int, float)) and _SIGNS[self.sign](value, self.value)


def runs_scored(reader: StoreReader, wanted: ScoreFilter, since: int, until: int) -> list[str]:
    """Return the ids of the runs with such a score in a window of time (nanoseconds), the newest score first.

    Only the newest score of each name counts for a run: people change their minds. Runs of experiments are left out.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for event in reader.events_named(ScoreRecorded.name, since, until):
        if event.run_id and event.payload.get("score") == wanted.name:
            newest.setdefault(event.run_id, event.payload)
    ids = [run_id for run_id, payload in newest.items() if wanted.fits(payload)]
    return [row.run_id for row in reader.rows(ids) if row.replay_of is None and not is_of_experiment(row)]


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
