"""SQL statements, read from the files in `sql`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from pellucid.errors import ConfigError

_SCHEMA_VERSION: Final = 4
"""Version of the code that works with the schema. Each has a file, `sql/schema_<version>.sql`, that turns the one
before into it."""

REVISION: Final = 6
"""Revision of the schema. Revisions after the version have such files, too, and only add to it."""

OTHER_DATABASE: Final = "the database of something else"

_CLAIMS: Final = ("claim", "claim_run", "find_suspect", "has_work")
"""Statements that workers of a version have of their own, so that other workers do not pay for them."""

_HEADER: Final = re.compile(r"^-- (\w+)(?::.*)?$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return the statements of a dialect by name, with `:name` for parameters."""
    texts = {**_named(_text("statements.sql")), **_named(_text(f"{dialect}.sql"))}
    clock, is_mine = texts.pop("now"), texts.pop("is_mine")
    texts |= {f"{name}_of_version": texts[name].replace("AND agent ", f"AND {is_mine} AND agent ") for name in _CLAIMS}
    return {name: text.replace("@now", clock) for name, text in texts.items()}


def schema(store: str, version: int | str, revision: int = 0) -> list[str]:
    """Return the statements that bring the schema of a store to the current revision.

    Args:
        store: Its name in errors.
        version: Version that it has; 0 if it is empty; what it is if it is no store of durable runs.
        revision: Revision that it has; 0 if none is noted. A later one is that of a newer Pellucid, and is left alone.

    Raises:
        ConfigError: this version of Pellucid does not know it.
    """
    if not isinstance(version, int):
        raise ConfigError(
            f"{store!r} is not a store of durable runs but {version}; name another file or database for durable runs"
        )
    if version > _SCHEMA_VERSION:
        raise ConfigError(
            f"store {store!r} has schema version {version}, and this version of Pellucid needs {_SCHEMA_VERSION}; "
            f"use another database, or the version of Pellucid that made it"
        )
    numbers = range((revision if version == _SCHEMA_VERSION and revision else version) + 1, REVISION + 1)
    texts = [_COMMENT.sub("", _text(f"schema_{number}.sql")) for number in numbers]
    return [statement.strip() for text in texts for statement in text.split(";") if statement.strip()]


def _text(name: str) -> str:
    return (files("pellucid.durable.store") / "sql" / name).read_text("utf-8")


def _named(text: str) -> dict[str, str]:
    _, *parts = _HEADER.split(text)
    return {name: _COMMENT.sub("", body).strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
