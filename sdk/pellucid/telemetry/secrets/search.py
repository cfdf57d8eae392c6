"""Search for secrets in a text.

The forms of secrets are in tables: names in `names.py`, tokens of vendors in `vendors.py`, issuers in `cards.py`. One
pattern for all of them would take 200 ns a character. Instead, each search first finds required words or runs of
characters, at the speed of `memmem`, and applies a pattern only at these places.

Each search yields `(start, end, work)` for every place that it examines, with an empty span if there is no secret, so
that the work for a text can be bounded.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.assignments import find_assigned, may_assign
from pellucid.telemetry.secrets.cards import find_cards, may_have_cards
from pellucid.telemetry.secrets.vendors import find_blocks, find_tokens, may_have_tokens

_SHORTEST: Final = 12
"""Characters of the shortest secret that does not follow a ':' or '='."""

_PLACE_COST: Final = 5

_WORD: Final = re.compile(r"[A-Za-z][a-z]{0,15}[.]?", re.ASCII)

_ADDRESS: Final = re.compile(r"""[^\s"'`<>]*+""")
_USER: Final = re.compile(r"[^:@/?#]*(?:@[^:@/?#]+)?:(?![0-9]{1,5}[/?#])")
_USER_WITH_SLASH: Final = re.compile(r"[^:@?#]+:(?![0-9]{1,5}/)")
_TOKEN: Final = re.compile(r"(?=[\w-]{20,256}\Z)", re.ASCII)
_WITH_PATHS: Final = ("http", "https", "docker", "oci", "git", "ssh", "file")
"""Schemes whose addresses have ':' and '@' in their paths."""

_SIGNATURE: Final = re.compile(r"[?&](?:sig|(?:[\w-]{1,20}-)?signature)=([\w%+/=.-]{20,})", re.ASCII | re.IGNORECASE)
_USER_OPTION: Final = re.compile(r"""(?<=\s)(?:-u|--user)[\s=]\s{0,8}["']?[^\s:"']{1,128}:([^\s"']{1,512})""")


def _is_not_word(text: str) -> bool:
    return not _WORD.fullmatch(text)


def _is_user_and_password(text: str) -> bool:
    if _WORD.fullmatch(text):
        return False
    bare = text.rstrip("=")
    try:
        return b":" in b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_")
    except ValueError:
        return False


_BEARER: Final = re.compile(r"bearer(?:(?<!\wbearer)|(?<=\\[nrt]bearer))\s{1,8}([\w.~+/=-]{8,})", re.ASCII)
_BASIC: Final = re.compile(r"basic(?:(?<!\wbasic)|(?<=\\[nrt]basic))\s{1,8}([a-z0-9+/_-]{3,}={0,2})", re.ASCII)
_SCHEMES: Final = (("bearer", _BEARER, _is_not_word), ("basic", _BASIC, _is_user_and_password))


def find_secrets(text: str, max_work: int | None = None) -> tuple[list[tuple[int, int]], int]:
    """Return the positions of secrets, and the work of the search.

    Args:
        text: Text to search.
        max_work: Work after which the search stops. More work means that the text was not searched to its end.

    Returns:
        The start and end of each secret, in order and without overlaps; and the work, in units of about 0.3 µs.
    """
    if len(text) < _SHORTEST and ":" not in text and "=" not in text:
        return [], 0
    lower = text.lower()
    if len(lower) != len(text):
        lower = text.replace("\u0130", "i").lower()  # the only letter whose lower case has two characters
    spans: list[tuple[int, int]] = []
    work = 0
    for search in _searches(text, lower):
        for start, end, cost in search:
            work += cost
            if start < end:
                spans.append((start, end))
            if max_work is not None and work > max_work:
                return [], work
    return _merged(sorted(spans)) if spans else spans, work


def _searches(text: str, lower: str) -> list[Iterator[tuple[int, int, int]]]:
    """Return the searches that can match; most texts need none, which is quick to decide."""
    searches = [find_assigned(text, lower)] if may_assign(text, lower) else []
    if len(text) < _SHORTEST:
        return searches
    if may_have_tokens(text):
        searches.append(find_tokens(text))
    if may_have_cards(text):
        searches.append(find_cards(text))
    if "://" in text:
        searches += find_blocks(text), _find_user_info(text)
    elif "-----BEGIN " in text:
        searches.append(find_blocks(text))
    if "bearer" in lower or "basic" in lower or "sig" in lower or "curl" in lower:
        searches.append(_find_credentials(text, lower))
    return searches


def _find_credentials(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    for word, pattern, is_secret in _SCHEMES:
        if word in lower:
            for start, end in (match.span(1) for match in pattern.finditer(lower)):
                yield start, end if is_secret(text[start:end]) else start, _PLACE_COST
    if "?" in text and "sig" in lower:
        yield from ((*match.span(1), _PLACE_COST) for match in _SIGNATURE.finditer(text))
    if "curl" in lower:
        yield from ((*match.span(1), _PLACE_COST) for match in _USER_OPTION.finditer(text))


def _find_user_info(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield passwords and tokens before the last `@` of an address, and the work; they may contain `@` and `/`."""
    start = text.find("://")
    while start >= 0:
        address_start, following = start + 3, text.find("://", start + 3)
        yield start, start, _PLACE_COST
        address = _ADDRESS.match(text, address_start, len(text) if following < 0 else following)
        at = text.rfind("@", address_start, address_start if address is None else address.end())
        if address_start < at and text[at + 1 : at + 2].isalnum():
            user = _USER.match(text, address_start, at) or _TOKEN.match(text, address_start, at)
            if user is None and not text[max(0, start - 8) : start].lower().endswith(_WITH_PATHS):
                user = _USER_WITH_SLASH.match(text, address_start, at)
            if user is not None:
                yield user.end(), at, 0
        start = following


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = spans[:1]
    for start, end in spans:
        if start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
