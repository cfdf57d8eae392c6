"""Filters of the list of runs that were saved under a name: a file beside the store."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid.errors import ConfigError
from pellucid_exporters.viewer.feedback.parts import feedback_of
from pellucid_exporters.viewer.forms import given, own_form
from pellucid_exporters.viewer.runs.address import FLAGS, NUMBERS, TEXTS

MOST: Final = 50
"""Filters that a file has; the oldest leave first."""

MOST_NAME: Final = 60
"""Characters of a name."""

_MOST_QUERY: Final = 4_000
_KNOWN: Final = frozenset({*TEXTS, *NUMBERS, *FLAGS, "range", "since", "until", "sort", "zone", "column"})


class SavedFilters:
    """Saved filters. Only their owner can read the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._door = threading.Lock()

    def all(self) -> Mapping[str, str]:
        """Return the queries of the list's address by their names; none if the file is missing or has others."""
        try:
            return self._read()
        except ConfigError:
            return {}

    def save(self, name: str, query: str) -> None:
        """Save a filter; one of the same name is replaced.

        Raises:
            ConfigError: the name or the query is empty or too long, or the file cannot be read or written.
        """
        name, query = name.strip(), own_query(query)
        if not 0 < len(name) <= MOST_NAME:
            raise ConfigError(f"A name has 1 to {MOST_NAME} characters.")
        if not 0 < len(query) <= _MOST_QUERY:
            raise ConfigError(f"A filter has 1 to {_MOST_QUERY:,} characters.")
        with self._door:
            known = {other: kept for other, kept in self._read().items() if other != name}
            self._write({**known, name: query})

    def remove(self, name: str) -> None:
        """Remove a filter, if it is there.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with self._door:
            self._write({other: kept for other, kept in self._read().items() if other != name})

    def _read(self) -> dict[str, str]:
        try:
            found: Any = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(each["name"])[:MOST_NAME]: own_query(each["query"]) for each in found["filters"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{self._path} is no list of filters, or cannot be read; move it away.") from error

    def _write(self, filters: Mapping[str, str]) -> None:
        kept = [{"name": name, "query": query} for name, query in filters.items()][-MOST:]
        try:
            handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"filters": kept}, file, ensure_ascii=False, indent=1)
            Path(draft).replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written ({error.strerror}).") from error


async def save_filter(request: Request) -> Response:
    """Save a filter of the list of runs, or remove one, and show the list again."""
    feedback, filters = feedback_of(request), filters_of(request)
    assert feedback is not None  # otherwise there is no such route
    form = await own_form(request, feedback.actions)
    if filters is None:
        raise HTTPException(404, "There is no file for filters.")
    name, query = given(form, "name"), own_query(form.get("query", ""))
    try:
        if form.get("remove"):
            await run_in_threadpool(filters.remove, name)
        else:
            await run_in_threadpool(filters.save, name, query)
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(f"/runs?{query}" if query else "/runs", 303)


def filters_of(request: Request) -> SavedFilters | None:
    """Return the saved filters of the application."""
    filters: SavedFilters | None = request.app.state.filters
    return filters


def own_query(query: str) -> str:
    """Return a query of the list's address with the parameters that it has, and no others."""
    pairs = parse_qsl(query, max_num_fields=100)
    return urlencode([(name, value) for name, value in pairs if name in _KNOWN and value.strip()])
