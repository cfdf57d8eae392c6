"""Passwords in the options of commands: in a command line, and in a list of arguments.

To recognise those of another command, add it to the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.assignments import is_blank

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
_COMMAND_COST: Final = 24


def _by_word() -> dict[str, list[tuple[str, bool, frozenset[str]]]]:
    """Return, for each word of a command, option, whether the password is the next argument, and all words."""
    found: dict[str, list[tuple[str, bool, frozenset[str]]]] = {}
    for option, pattern, commands, _ in _OPTIONS:
        for words in commands:
            for word in words:
                found.setdefault(word, []).append((option.strip(), pattern is _APART, words))
    return found


_BY_WORD: Final = _by_word()
_IN_QUOTES: Final = tuple(f"{quote}{option.strip()}" for option in {row[0] for row in _OPTIONS} for quote in "\"'")
_STEMS: Final = tuple({stem for *_, stems in _OPTIONS for stem in stems})


class Arguments:
    """Arguments of a command in a list, such as `["mysql", "-psecret"]`, added one after the other."""

    __slots__ = ("_is_next", "_options", "_words")

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._options: dict[str, bool] = {}
        self._is_next = False

    def hides(self, argument: str) -> bool:
        """Add an argument and return whether it is, or has, a password."""
        if self._is_next:
            self._is_next = False
            return not is_blank(argument)
        option, value = argument[:2], argument[2:]
        if option in self._options:
            self._is_next = self._options[option] and not value
            return value != "" and not is_blank(value.removeprefix("="))
        word = argument.rpartition("/")[2]
        for option, is_apart, words in _BY_WORD.get(word, ()):
            self._words.add(word)
            if self._words >= words:
                self._options[option] = is_apart or self._options.get(option, False)
        return False


def may_have_arguments(text: str) -> bool:
    """Return whether a text can have a list of arguments with a password."""
    if '"-' not in text and "'-" not in text:
        return False
    return any(option in text for option in _IN_QUOTES) and has_command(text)


def has_command(text: str) -> bool:
    """Return whether a text can have one of the commands."""
    return any(stem in text for stem in _STEMS)


def find_options(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of passwords in command lines, and the work."""
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
