"""Secrets that stand after a scheme, an option of a command, or a parameter of an address."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.assignments import closing, is_blank
from pellucid.telemetry.secrets.blanks import BLANKS

_WORD_COST: Final = 2
_PLACE_COST: Final = 5
_COMMAND_COST: Final = 24

_BLANK: Final = rf"[\s{BLANKS}]"
_QUOTE: Final = r"""(?:\\{0,8}["'`])"""

_WORD: Final = re.compile(r"[A-Za-z][a-z_]{0,20}(?:-[a-z]{1,15}){0,3}[.=]?", re.ASCII)
_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")
_LONG: Final = 20

_JOINED: Final = re.compile(r"""["'`]?([^\s"'`;|&\\]{1,512})""")
_APART: Final = re.compile(r"""[ =]{0,4}["'`]?([^\s"'`;|&\\]{1,512})""")
_COMMANDS: Final = (
    # option, what is between it and the password, commands
    (" -p", _JOINED, "mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump mariadb-admin"),
    (" -p", _APART, "sshpass mongo mongosh mongodump mongorestore mongoexport mongoimport"),
    (
        " -p",
        _APART,
        "docker+login podman+login nerdctl+login buildah+login skopeo+login helm+login oras+login az+login",
    ),
    (" -a", _APART, "redis-cli"),
    (" -P", _APART, "sqlcmd bcp zip unzip"),
)


def _stems(commands: str) -> list[str]:
    """Return what a text with one of the commands has: of each its last word, unless that has another one in it."""
    words = {command.rpartition("+")[2] for command in commands.split()}
    return sorted(word for word in words if not any(other in word for other in words - {word}))


_OPTIONS: Final = tuple(
    (option, pattern, [frozenset(command.split("+")) for command in commands.split()], _stems(commands))
    for option, pattern, commands in _COMMANDS
)
_LONGEST_COMMAND: Final = 200


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
    if ("?" in text and "=" in text) or ("-" in text and " -" in text):
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
        yield from _find_options(text, lower)


def _find_parameters(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    if "sig" in lower:
        yield from ((*match.span(1), _PLACE_COST) for match in _SIGNATURE.finditer(text))
    if any(f"{name}=" in lower for name in _PARAMETERS):
        for match in _PARAMETER.finditer(text):
            start, end = match.span(1)
            value = match[1]
            is_secret = len(value) >= _LONG or (_DIGIT.search(value) and _LETTER.search(value))
            yield start, end if is_secret else start, _PLACE_COST


def _find_options(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    if "curl" in lower:
        yield from ((*match.span(1), _PLACE_COST) for match in _USER_OPTION.finditer(text))
    for option, pattern, commands, stems in _OPTIONS:
        start = text.find(option)
        if start < 0 or not any(stem in text for stem in stems):
            continue
        while start >= 0:
            yield start, start, _COMMAND_COST
            words = _words_before(text, start)
            value = pattern.match(text, start + len(option)) if any(words >= names for names in commands) else None
            if value is not None and not is_blank(value[1]):
                yield *value.span(1), 0
            start = text.find(option, start + 1)


def _words_before(text: str, end: int) -> set[str]:
    """Return the words of a command before one of its options; paths and quotes do not count."""
    line = text[max(0, end - _LONGEST_COMMAND) : end]
    start = max(map(line.rfind, "\n|;&"))
    return {word.rpartition("/")[2].strip("\"'`$()") for word in line[start + 1 :].split()}
