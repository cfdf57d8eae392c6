"""Sets of cases: files in JSON Lines, a case on each line, so that a review shows each case that changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.messages import dump_messages, load_messages
from pellucid.scores import Case
from pellucid.text import close_to, excerpt
from pellucid.types import JSONObject

_KEYS: Final = ("id", "input", "expected", "tags", "source", "note")
_MOST: Final = 128
"""Characters of an id."""


class CaseError(ConfigError):
    """A set of cases cannot be used; the text names the file, the line and the remedy."""


def load_cases(path: str | os.PathLike[str], tags: Collection[str] = ()) -> tuple[Case, ...]:
    """Return the cases of a set, in the order of the file.

    Args:
        path: A file in JSON Lines: objects with `id`, `input` (a text, or messages), `expected`, `tags`, `source` and
            `note`, of which the first two are required. Empty lines are left out.
        tags: Only cases with at least one of these.

    Raises:
        CaseError: the file cannot be read, a line is no case, two cases have one id, or none has such a tag.
    """
    file = Path(path)
    cases = tuple(_read(file, _text_of(file)))
    chosen = tuple(case for case in cases if not tags or not set(tags).isdisjoint(case.tags))
    if tags and not chosen:
        known = sorted({tag for case in cases for tag in case.tags})
        raise CaseError(f"{file}: no case has the tag {' or '.join(tags)}; its tags are {', '.join(known) or 'none'}")
    return chosen


def save_cases(path: str | os.PathLike[str], cases: Iterable[Case]) -> None:
    """Write a set of cases, in place of what the file holds.

    Raises:
        CaseError: two cases have one id, or the file cannot be written.
    """
    file = Path(path)
    _write(file, "".join(map(_line, _checked(file, (), cases))))


def add_cases(path: str | os.PathLike[str], cases: Iterable[Case]) -> None:
    """Append cases to a set, which need not exist; the lines that are there stay as they are.

    Raises:
        CaseError: a case has the id of another one, or the file cannot be read or written.
    """
    file = Path(path)
    text = _text_of(file) if file.exists() else ""
    new = _checked(file, [case.id for case in _read(file, text)], cases)
    gap = "\n" if text and not text.endswith("\n") else ""
    _write(file, text + gap + "".join(map(_line, new)))


def fingerprint(case: Case) -> str:
    """Return a digest of what is asked and expected, by which a changed case is known."""
    asked = {key: value for key, value in _shape(case).items() if key in {"input", "expected", "source"}}
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: Path, text: str) -> Iterator[Case]:
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CaseError(f"{place}: this is no JSON ({error}); write one case on each line") from None
        try:
            case = _case(data)
        except ValueError as error:
            raise CaseError(f"{place}: {error}") from None
        if (first := lines.setdefault(case.id, number)) != number:
            raise CaseError(f"{place}: the case of line {first} has the id {case.id!r}, too; give each its own")
        yield case


def _case(data: object) -> Case:
    """Return the case of an object.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(data, dict):
        raise ConfigError('this is no JSON object; write {"id": "…", "input": "…"}')
    for key in data:
        if key not in _KEYS:
            hint = close_to(key, _KEYS) or f"It may have {', '.join(_KEYS)}."
            raise ConfigError(f"a case has no {key!r:.80}. {hint}")
    name, tags = data.get("id"), data.get("tags", [])
    if not isinstance(name, str) or not 0 < len(name) <= _MOST or not name.isprintable():
        raise ConfigError(f'"id" must be a text of 1 to {_MOST} printable characters, not {excerpt(repr(name))}')
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f'"tags" must be a list of texts, such as ["refunds"], not {excerpt(repr(tags))}')
    for key in ("source", "note"):
        if not isinstance(data.get(key, ""), str):
            raise ConfigError(f'"{key}" must be a text, not {excerpt(repr(data[key]))}')
    return Case(
        id=name,
        input=_input(data.get("input")),
        expected=data.get("expected"),
        tags=tuple(tags),
        source=data.get("source", ""),
        note=data.get("note", ""),
    )


def _input(data: Any) -> Any:
    if isinstance(data, str) and data:
        return data
    if not isinstance(data, list) or not data:
        raise ConfigError(f'"input" must be a text, or a list of messages, not {excerpt(repr(data))}')
    return load_messages(data)


def _checked(file: Path, known: Sequence[str], cases: Iterable[Case]) -> list[Case]:
    ids, given = set(known), list(cases)
    for case in given:
        _case(_shape(case))
        if case.id in ids:
            raise CaseError(f"{file}: there is a case with the id {case.id!r}; give this one another id")
        ids.add(case.id)
    return given


def _shape(case: Case) -> JSONObject:
    """Return a case as JSON-able data, without what is empty."""
    text = case.input if isinstance(case.input, str) else dump_messages(case.input)
    rest = {"expected": case.expected, "tags": list(case.tags), "source": case.source, "note": case.note}
    return {"id": case.id, "input": text, **{key: value for key, value in rest.items() if value not in (None, [], "")}}


def _line(case: Case) -> str:
    return f"{json.dumps(_shape(case), ensure_ascii=False)}\n"


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8"
        raise CaseError(f"{file}: the set of cases cannot be read ({why}); see: pellucid cases add --help") from None


def _write(file: Path, text: str) -> None:
    """Write a file as a whole or not at all. A new one has the permissions of the umask: people review it in git."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if file.exists():
            shutil.copymode(file, draft)
        draft.replace(file)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise CaseError(f"{file}: the set of cases cannot be written ({error.strerror}); name another file") from None
