"""Search for secrets in a text.

The forms of secrets are in tables: names in `names.py`, tokens of vendors in `vendors.py`, issuers in `cards.py`,
commands in `commands.py`. One pattern for all of them would take 200 ns a character. Instead, each search first
finds required words or runs of characters, at the speed of `memmem`, and applies a pattern only at these places.

Each search yields `(start, end, work)` for every place that it examines, with an empty span if there is no secret, so
that the work for a text can be bounded.

JSON and the `repr` of data are read as what they are, in `documents.py`, as soon as a search finds something in them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from pellucid.telemetry.secrets.assignments import find_assigned
from pellucid.telemetry.secrets.cards import find_cards, may_have_cards
from pellucid.telemetry.secrets.credentials import find_credentials, may_have_credentials
from pellucid.telemetry.secrets.documents import Documents, Edit
from pellucid.telemetry.secrets.hidden import may_hide_secrets
from pellucid.telemetry.secrets.names import WORDS, has_word
from pellucid.telemetry.secrets.vendors import find_blocks, find_tokens, may_have_tokens

Place = tuple[int, int, int]

SHORTEST: Final = 12
"""Characters of the shortest secret that does not follow a ':' or '='."""

_TEXT_COST: Final = 7
_DOCUMENTS_COST: Final = 20
_PLACE_COST: Final = 4

_ADDRESS: Final = re.compile(r"""[^\s"'`<>]*+""")
_PORT: Final = r"[0-9]{1,5}(?:[/?#]|[,;|][A-Za-z][\w.+-]{0,64}@)"
_USER: Final = re.compile(rf"(?!\[)[^:@/?#]*(?:@[^:@/?#]+)?:(?!{_PORT})")
_USER_WITH_SLASH: Final = re.compile(r"[^:@?#]+:(?![0-9]{1,5}/)")
_TOKEN: Final = re.compile(r"(?=[\w-]{20,256}\Z)", re.ASCII)
_WITH_PATHS: Final = ("http", "https", "docker", "oci", "git", "ssh", "file")
"""Schemes whose addresses have ':' and '@' in their paths."""

_SIGNS: Final = (*WORDS, "--", "://", " -", "?", "basic", "identified", "input_value=", '"-', "'-")
"""Parts in lower case, one of which each text with a secret has unless it has a run of letters or digits."""

_DEEPEST: Final = 24
"""Texts within texts that are read; each level of JSON within JSON doubles the escapes."""


def find_secrets(text: str, max_work: int | None = None, depth: int = 0) -> tuple[list[Edit], int]:
    """Return what to replace in a text, and the work of the search.

    Args:
        text: Text to search.
        max_work: Work after which the search stops. More work means that the text was not searched to its end.
        depth: Number of texts around this one.

    Returns:
        The start and end of each secret with the quotes that its replacement needs, in order and without overlaps; and
        the work, in units of about 0.5 µs.
    """
    if len(text) < SHORTEST and ":" not in text and "=" not in text:
        return [], 0
    lower = text.lower()
    if len(lower) != len(text):
        lower = text.replace("\u0130", "i").lower()  # the only letter whose lower case has two characters
    has_words = has_word(lower)
    searches = _searches(text, lower, has_words=has_words)
    is_read = may_hide_secrets(text, lower, has_words=has_words)
    if not searches and not is_read:
        return [], _TEXT_COST if "\\" in text else 0
    found = _Found(chain.from_iterable(searches), sys.maxsize if max_work is None else max_work)
    found.read(only_first=depth < _DEEPEST)
    if depth == _DEEPEST or not (found.edits or is_read) or found.work > found.max_work:
        return found.result()
    if "{" not in text and "[" not in text and "\\" not in text:  # a document has a bracket, or an escape of it
        found.read(only_first=False)
        return found.result()
    documents = Documents(
        text,
        find_secrets,
        signs=[sign for sign in _SIGNS if sign in lower],
        has_runs=may_have_tokens(text) or may_have_cards(text),
        max_work=found.max_work - found.work,
        depth=depth,
    )
    found.work += _DOCUMENTS_COST + documents.read()
    if documents.are_all:
        found.edits = documents.edits
    else:
        found.read(only_first=False)
        found.edits = documents.edits + documents.outside(found.edits)
    return found.result()


class _Found:
    """Findings of the searches of a text so far."""

    def __init__(self, places: Iterator[Place], max_work: int) -> None:
        self._places = places
        self.max_work = max_work
        self.edits: list[Edit] = []
        self.work = _TEXT_COST

    def read(self, *, only_first: bool) -> None:
        """Search up to the first secret or to the end, or until there was too much work."""
        while self.work <= self.max_work and not (only_first and self.edits):
            place = next(self._places, None)
            if place is None:
                break
            start, end, work = place
            self.work += work
            if start < end:
                self.edits.append((start, end, ""))

    def result(self) -> tuple[list[Edit], int]:
        return ([] if self.work > self.max_work else _merged(self.edits)), self.work


def _searches(text: str, lower: str, *, has_words: bool) -> list[Iterable[Place]]:
    """Return the searches that can match; most texts need none, which is quick to decide.

    A search for one character is much faster than one for several, and hence comes first.
    """
    has_options = "-" in text and "--" in text
    searches: list[Iterable[Place]] = []
    if has_words or has_options or ("=" in text and "input_value=" in text):
        searches.append(find_assigned(text, lower))
    if len(text) < SHORTEST:
        return searches
    if may_have_tokens(text):
        searches.append(find_tokens(text))
    if may_have_cards(text):
        searches.append(find_cards(text))
    if "/" in text and "://" in text:
        searches += find_blocks(text), _find_user_info(text)
    elif has_options and "BEGIN " in text:
        searches.append(find_blocks(text))
    if may_have_credentials(text, lower, has_words=has_words):
        searches.append(find_credentials(text, lower))
    return searches


def _find_user_info(text: str) -> Iterator[Place]:
    """Yield passwords and tokens before the last `@` of an address, and the work; they may contain `@` and `/`."""
    start = text.find("://")
    while start >= 0:
        address_start, following = start + 3, text.find("://", start + 3)
        yield start, start, _PLACE_COST
        address = _ADDRESS.match(text, address_start, len(text) if following < 0 else following)
        at = text.rfind("@", address_start, address_start if address is None else address.end())
        if address_start < at and text[at + 1 : at + 2].isalnum():
            user = _USER.match(text, address_start, at + 1) or _TOKEN.match(text, address_start, at)
            if user is None and not text[max(0, start - 8) : start].lower().endswith(_WITH_PATHS):
                user = _USER_WITH_SLASH.match(text, address_start, at)
            if user is not None:
                yield user.end(), at, 0
        start = following


def _merged(edits: list[Edit]) -> list[Edit]:
    """Return edits in order, with those that overlap as one."""
    if len(edits) < 2:  # noqa: PLR2004
        return edits
    edits.sort(key=lambda edit: (edit[0], -edit[1]))
    merged = edits[:1]
    for start, end, quote in edits:
        first, last, first_quote = merged[-1]
        if start < last:
            if end > last:
                merged[-1] = first, end, first_quote
        else:
            merged.append((start, end, quote))
    return merged
