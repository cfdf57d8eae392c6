"""Secrets that stand after a scheme, an option of a command, or a parameter of an address."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.assignments import closing
from pellucid.telemetry.secrets.blanks import BLANKS
from pellucid.telemetry.secrets.commands import find_options, has_command

_WORD_COST: Final = 2
_PLACE_COST: Final = 5

_BLANK: Final = rf"[\s{BLANKS}]"
_QUOTE: Final = r"""(?:\\{0,8}["'`])"""

_WORD: Final = re.compile(r"[A-Za-z][a-z_]{0,20}(?:-[a-z]{1,15}){0,3}[.=]?", re.ASCII)
_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")
_LONG: Final = 20


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


_BEARER: Final = re.compile(
    rf"bearer(?:(?<!\wbearer)|(?<=\\[nrt]bearer))(?=[^\w.-])(?:{_BLANK}{{1,8}}token(?=\W))?"
    rf"(?:{_BLANK}|[:=]){{0,9}}{_QUOTE}?([\w.~+/=-]{{8,}})",
    re.ASCII,
)
_BASIC: Final = re.compile(
    rf"basic(?:(?<!\wbasic)|(?<=\\[nrt]basic)){_BLANK}{{1,8}}{_QUOTE}?([a-z0-9+/_-]{{3,}}={{0,2}})", re.ASCII
)
_SCHEMES: Final = (("bearer", _BEARER, _is_not_word), ("basic", _BASIC, _is_user_and_password))

_SIGNATURE: Final = re.compile(r"[?&](?:sig|(?:[\w-]{1,20}-)?signature)=([\w%+/=.-]{20,})", re.ASCII | re.IGNORECASE)
_PARAMETERS: Final = ("key", "code", "session", "sid", "auth", "ticket")
_PARAMETER: Final = re.compile(rf"[?&](?:{'|'.join(_PARAMETERS)})=([\w%+/=.~-]{{8,2048}})", re.ASCII | re.IGNORECASE)
_USER_OPTION: Final = re.compile(r"""(?<=\s)(?:-u|--user)[\s=]\s{0,8}["']?[^\s:"']{1,128}:([^\s"']{1,512})""")
_IDENTIFIED: Final = re.compile(
    rf"identified{_BLANK}{{1,8}}(?:with{_BLANK}{{1,8}}\S{{1,64}}{_BLANK}{{1,8}})?(?:by|as){_BLANK}{{1,8}}({_QUOTE})"
)


def may_have_credentials(text: str, lower: str, *, has_words: bool) -> bool:
    """Return whether a text can have such secrets; `lower` is the text in lower case."""
    if "basic" in lower or (has_words and "bearer" in lower):
        return True
    if "?" in text and "=" in text:
        return True
    if "-" in text and " -" in text and ("curl" in lower or has_command(text)):
        return True
    return ("'" in text or '"' in text) and "identified" in lower


def find_credentials(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of secrets, and the work."""
    for word, pattern, is_secret in _SCHEMES:
        if words := lower.count(word):
            yield 0, 0, _WORD_COST * words
            for start, end in (match.span(1) for match in pattern.finditer(lower)):
                yield start, end if is_secret(text[start:end]) else start, _PLACE_COST
    if "?" in text:
        yield from _find_parameters(text, lower)
    if words := lower.count("identified"):
        yield 0, 0, _WORD_COST * words
        for match in _IDENTIFIED.finditer(lower):
            yield match.end(), closing(text, match.end(), match[1]), _PLACE_COST
    if " -" in text:
        if "curl" in lower:
            yield from ((*match.span(1), _PLACE_COST) for match in _USER_OPTION.finditer(text))
        yield from find_options(text)


def _find_parameters(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    if "sig" in lower:
        yield from ((*match.span(1), _PLACE_COST) for match in _SIGNATURE.finditer(text))
    if any(f"{name}=" in lower for name in _PARAMETERS):
        for match in _PARAMETER.finditer(text):
            start, end = match.span(1)
            value = match[1]
            is_secret = len(value) >= _LONG or (_DIGIT.search(value) and _LETTER.search(value))
            yield start, end if is_secret else start, _PLACE_COST
