"""SQL statements, read from the files in `sql`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from pellucid.errors import ConfigError

_SCHEMA_VERSION: Final = 1

_HEADER: Final = re.compile(r"^-- (\w+)(?::.*)?$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return the statements of a dialect by name, with `:name` for parameters."""
    texts = {**_named(_text("statements.sql")), **_named(_text(f"{dialect}.sql"))}
    clock = texts.pop("now")
    return {name: text.replace("@now", clock) for name, text in texts.items()}


def schema() -> list[str]:
    """Return the statements that create the schema."""
    return [text for part in _COMMENT.sub("", _text("schema.sql")).split(";") if (text := part.strip())]


def check_version(store: str, version: int | str) -> None:
    """Check the version of an existing schema.

    Raises:
        ConfigError: this version of Pellucid does not know it.
    """
    if version != _SCHEMA_VERSION:
        raise ConfigError(
            f"store {store!r} has schema version {version}, and this version of Pellucid needs {_SCHEMA_VERSION}; "
            f"use another database, or the version of Pellucid that made it"
        )


def _text(name: str) -> str:
    return (files("pellucid.durable") / "sql" / name).read_text("utf-8")


def _named(text: str) -> dict[str, str]:
    _, *parts = _HEADER.split(text)
    return {name: _COMMENT.sub("", body).strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
