"""JSON and the `repr` of data in a text: which of their values are secrets.

A text may have several such documents, with words between them, and their strings may have documents again. Values
are masked as in data: everything below the name of a secret, `{"name": ..., "value": ...}`, pairs and options. Each
string is searched by itself, without its escapes. So a document stays valid.

A document is read once, from left to right. One that is cut off is read up to its end. Code and the like, which only
starts like a document, is left to the other searches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from pellucid.telemetry.secrets.assignments import IN_NAME, is_blank
from pellucid.telemetry.secrets.cards import is_card
from pellucid.telemetry.secrets.commands import Arguments, may_have_arguments
from pellucid.telemetry.secrets.escapes import Unescaped, escaped, unescaped
from pellucid.telemetry.secrets.names import hides, kind_of, names_secret

Edit: TypeAlias = tuple[int, int, str]
"""Start and end of a secret, and the quotes that its replacement needs."""

Search: TypeAlias = Callable[[str, int | None, int], tuple[list[Edit], int]]
"""Search of a text, with the remaining work and the number of texts around it."""

_BRACKET_COST: Final = 2
_VALUE_COST: Final = 3
_SHALLOW: Final = 4
"""Levels up to which a bracket takes less work than a value."""

_NAME_COST: Final = 2
_ESCAPE_COST: Final = 1
_STRING_COST: Final = 4
_DOCUMENT_COST: Final = 4
_FAILURE_COST: Final = 16
_QUOTES_OF_COST: Final = 4

_START: Final = re.compile(r"""[\[{]|(?<!\\)["'](?=\s*(?:[\[{]|["']\s*[\[{]|\\+["'nrt]))""")
"""Start of a document: a list, an object, or a string with one of these in it."""

_FRAGMENT: Final = re.compile(r"""[\[{](?:[^"'\\]|\\+[nrt]){0,64}+\\+["']""")
"""Start of a document without the quotes of the string that it comes from."""

_IN_FRAGMENT: Final = re.compile(r"""(?:[^"\\]++|\\.)*+""", re.DOTALL)

_STRING: Final = r"""[bBuU]?(?:"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')"""
_PART: Final = re.compile(
    rf"[\s,]*+(?:(?P<key>{_STRING}|-?[0-9][0-9.]*+|None|True|False)\s*+:\s*+)?"
    rf"(?:(?P<string>{_STRING})(?!\s*+:)|(?P<open>[\[{{(])|(?P<close>[\]}})])"
    r"|(?P<scalar>-?[0-9][\w.+-]*+|(?:true|false|null|None|True|False|NaN|nan|-?Infinity|-?inf)(?!\w)))",
    re.DOTALL,
)
_CUT: Final = re.compile(
    rf"[\s,]*+(?:(?P<key>{_STRING})\s*+(?::\s*+)?)?"
    r"(?P<rest>[bBuU]?(?:\"(?:[^\"\\]++|\\.)*+|'(?:[^'\\]++|\\.)*+)\\?|-?[\w.+-]*+)\Z",
    re.DOTALL,
)
"""End of a document that is cut off."""

_BETWEEN: Final = " \t\r\n,;"
"""Characters between documents, and around them."""

_SHORTENED: Final = "input_value="
"""Text before the input in an error of pydantic, which looks like a document but may be shortened in the middle."""

_BEFORE: Final = frozenset(":=> \t\n")
_LONGEST_BEFORE: Final = 100

_NAME_KEYS: Final = frozenset({"name", "key", "header", "field"})
_VALUE_KEYS: Final = frozenset({"value", "val"})
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "object", "array"})
_IN_SCHEMA: Final = frozenset({"const", "default", "enum", "example", "examples", "value"})
"""Keys of a JSON schema that hold values."""

_LONGEST_BLANK: Final = 100
_SIGN: Final = re.compile(r"[:=\\]")
_SHORTEST: Final = 12
_SHORTEST_CARD: Final = 13
_PAIR: Final = 2


class _Key(NamedTuple):
    """A key of an object. Attributes: kind: What it hides, or `name` or `value`."""

    text: str
    kind: str


class _Level:
    """A list or object that is being read.

    Attributes:
        is_secret: Whether it is below the name of a secret.
        is_schema: Whether it is a JSON schema, below the name of a secret.
        is_list: Whether it is a list or tuple.
        is_item: Whether it is an item of a list or tuple.
        count: Number of its items.
        first, last: Where the leaves of its second item or `value` start among all leaves, and end; -1 if unknown.
        names_value: Whether another entry says that `value` is a secret.
        names_pair: Whether its first item is the name of a secret.
        previous: Its previous item, if that is a text.
        arguments: Its texts, as those of a command.
    """

    __slots__ = (
        "arguments", "count", "first", "is_item", "is_list", "is_schema", "is_secret", "last", "names_pair",
        "names_value", "previous",
    )  # fmt: skip

    def __init__(self, *, is_secret: bool, is_list: bool, is_item: bool) -> None:
        self.is_secret = is_secret
        self.is_list = is_list
        self.is_item = is_item
        self.is_schema = self.names_value = self.names_pair = False
        self.count = 0
        self.first = self.last = -1
        self.previous = ""
        self.arguments: Arguments | None = None


class Documents:
    """The documents of a text.

    Args:
        text: The text.
        signs: Signs of secrets that the text has, in lower case: a string without them needs no search.
        has_runs: Whether the text has long runs of letters or digits.
        search: Search for the strings in documents.
        max_work: Work after which reading stops.
        depth: Number of texts around this one.

    Attributes:
        edits: The secrets that were found.
        are_all: Whether the text has nothing else than documents.
    """

    def __init__(
        self,
        text: str,
        search: Search,
        *,
        signs: Sequence[str],
        has_runs: bool,
        max_work: int,
        depth: int,
    ) -> None:
        self._text = text
        self._search = search
        self._limit = max_work
        self._depth = depth
        self._work = 0
        self._regions: list[tuple[int, int]] = []
        self._leaves: list[Edit] = []
        self._keys: dict[str, _Key] = {}
        self._quote = '"'
        self._signs = signs
        self._has_runs = has_runs
        self._has_escapes = "\\" in text
        self._has_shortened = _SHORTENED in signs
        self._has_arguments = may_have_arguments(text)
        self.edits: list[Edit] = []
        self.are_all = False

    def read(self) -> int:
        """Read the documents and return the work."""
        text, at, has_others = self._text, 0, False
        self._work += (text.count('"') + text.count("'")) // _QUOTES_OF_COST
        while (match := _START.search(text, at)) is not None and self._work <= self._limit:
            start = match.start()
            end, is_document = self._document(start)
            if is_document:
                self._regions.append((start, end))
            self._work += _DOCUMENT_COST if is_document else _FAILURE_COST
            has_others = has_others or not is_document or bool(text[at:start].strip(_BETWEEN))
            at = max(end, start + 1)
        self.are_all = not has_others and not text[at:].strip(_BETWEEN)
        return self._work

    def outside(self, edits: list[Edit]) -> list[Edit]:
        """Return the edits that are not inside of a document; those that start inside of one start behind it."""
        starts = [start for start, _ in self._regions]
        kept = []
        for start, end, quote in edits:
            number = bisect_right(starts, start) - 1
            inside_until = self._regions[number][1] if number >= 0 else 0
            if end > inside_until:
                kept.append((max(start, inside_until), end, quote))
        return kept

    def _document(self, start: int) -> tuple[int, bool]:
        """Read a document and return its end, and whether it is one."""
        text = self._text
        if self._has_shortened and text.endswith(_SHORTENED, 0, start):
            end = text.find("\n", start)
            return len(text) if end < 0 else end, False
        is_secret = self._is_named(start)
        if self._has_escapes and _FRAGMENT.match(text, start):
            match = _IN_FRAGMENT.match(text, start)
            end = start if match is None else match.end()
            self._read_string(start, end, '"', is_secret=is_secret)
            return end, True
        edits = len(self.edits)
        self._leaves = []
        end, is_document = self._read(start, is_secret=is_secret)
        if not is_document:
            del self.edits[edits:]
        return end, is_document

    def _is_named(self, start: int) -> bool:
        """Return whether the name of a secret is before a document: `credentials: {`, `--credentials {`."""
        if not start or self._text[start - 1] not in _BEFORE:
            return False
        before = self._text[max(0, start - _LONGEST_BEFORE) : start].rstrip()
        if before.endswith((":", "=", "=>")):
            before = before.rstrip(":=>").rstrip().rstrip("\"'`\\")
            return names_secret(before[len(before.rstrip(IN_NAME)) :])
        word = before.rpartition(" ")[2]
        return word.startswith("--") and names_secret(word)

    def _read(self, at: int, *, is_secret: bool) -> tuple[int, bool]:
        root = level = _Level(is_secret=is_secret, is_list=False, is_item=False)
        levels = [root]
        part, text, limit = _PART.match, self._text, self._limit
        while (match := part(text, at)) is not None:
            at = match.end()
            kind = match.lastgroup
            if kind == "close":
                self._work += 1
                if level is root:
                    return match.start("close"), False
                self._close(levels.pop())
                level = levels[-1]
            else:
                self._work += _VALUE_COST if kind != "open" or len(levels) > _SHALLOW else _BRACKET_COST
                raw = match["key"]
                is_hidden = self._item(level, match) if raw is None else self._entry(level, raw, match)
                if kind == "open":
                    is_item = level.is_list and raw is None
                    level = _Level(is_secret=is_hidden, is_list=match["open"] != "{", is_item=is_item)
                    levels.append(level)
                elif kind == "string":
                    self._text_leaf(*match.span("string"), is_hidden=is_hidden)
                else:
                    self._scalar_leaf(raw or "", *match.span("scalar"), is_hidden=is_hidden)
            if level is root or self._work > limit:
                return at, True
        return self._cut_off(levels, at)

    def _entry(self, level: _Level, raw: str, match: re.Match[str]) -> bool:
        """Return whether the next value of an object is a secret."""
        level.count += 1
        key = self._keys.get(raw)
        if key is None:
            key = self._key(raw, match)
        if level.first >= 0 and level.last < 0:
            level.last = len(self._leaves)
        kind = key.kind
        if level.is_secret:
            if level.count == 1 and key.text == "type" and self._value(match) in _TYPES:
                level.is_schema = True
            return not level.is_schema or key.text in _IN_SCHEMA
        if not kind:
            return False
        if kind == "value":
            level.first, level.last = len(self._leaves), -1
        elif kind == "name":
            self._work += _NAME_COST
            level.names_value = level.names_value or names_secret(self._value(match))
        return kind == "any" or hides(key.text, self._sample(match))

    def _key(self, raw: str, match: re.Match[str]) -> _Key:
        """Return a key of an object, and search it: a key may be a secret itself."""
        edits = len(self.edits)
        text = self._key_text(*match.span("key")) if raw[-1] in "\"'" else raw
        kind = "value" if text in _VALUE_KEYS else "name" if text in _NAME_KEYS else kind_of(text)
        key = _Key(text, kind)
        if len(self.edits) == edits:
            self._keys[raw] = key
        return key

    def _key_text(self, start: int, end: int) -> str:
        start, end = self._inside(start, end)
        self._read_string(start, end, self._quote, is_secret=False)
        return unescaped(self._text[start:end])

    def _inside(self, start: int, end: int) -> tuple[int, int]:
        """Return where the inside of a string is, which may have a letter before its quotes; note the quotes."""
        self._quote = self._text[end - 1]
        return (start + 1 if self._text[start] == self._quote else start + 2), end - 1

    def _item(self, level: _Level, match: re.Match[str]) -> bool:
        """Return whether the next item of a list is a secret."""
        level.count += 1
        if level.count == _PAIR:
            level.first = len(self._leaves)
        previous, level.previous = level.previous, ""
        if match.lastgroup == "string":
            if level.count == 1 and level.is_item and level.is_list:
                self._work += _NAME_COST
                level.names_pair = names_secret(self._value(match))
            elif match["string"][1] == "-":
                level.previous = self._value(match)
            if self._has_arguments and level.is_list and self._is_argument(level, self._value(match)):
                return True
        return level.is_secret or (previous != "" and names_secret(previous))

    def _is_argument(self, level: _Level, text: str) -> bool:
        """Return whether the next text of a list is, or has, the password of a command."""
        if level.arguments is None:
            level.arguments = Arguments()
        self._work += _NAME_COST
        return level.arguments.hides(text)

    def _close(self, level: _Level) -> None:
        """Mask what the end of a list or object shows to be a secret."""
        if level.first >= 0 and (level.names_value or (level.names_pair and level.count == _PAIR)):
            last = level.last if level.last >= 0 else len(self._leaves)
            self.edits += [leaf for leaf in self._leaves[level.first : last] if not self._is_stand_in(leaf)]

    def _is_stand_in(self, leaf: Edit) -> bool:
        start, end, _ = leaf
        return end - start <= _LONGEST_BLANK and is_blank(self._text[start:end])

    def _scalar_leaf(self, key: str, start: int, end: int, *, is_hidden: bool) -> None:
        leaf = start, end, self._quote
        self._leaves.append(leaf)
        if (is_hidden and not self._is_stand_in(leaf)) or (
            end - start >= _SHORTEST_CARD and is_card(key, self._text[start:end])
        ):
            self.edits.append(leaf)

    def _text_leaf(self, start: int, end: int, *, is_hidden: bool) -> None:
        start, end = self._inside(start, end)
        self._leaves.append((start, end, ""))
        if is_hidden or end - start >= _SHORTEST or _SIGN.search(self._text, start, end):
            self._read_string(start, end, self._quote, is_secret=is_hidden)

    def _value(self, match: re.Match[str]) -> str:
        """Return the text of a string value; empty if the value is something else."""
        raw = match["string"] or ""
        return unescaped(raw[1:-1] if raw[:1] in {'"', "'"} else raw[2:-1])

    def _sample(self, match: re.Match[str]) -> object:
        """Return a value of the same type as the next value of an object."""
        if match.lastgroup == "string":
            return ""
        return 0 if match.lastgroup == "scalar" and match["scalar"][-1].isdigit() else None

    def _read_string(self, start: int, end: int, quote: str, *, is_secret: bool) -> None:
        """Search the inside of a string, without its escapes."""
        if is_secret:
            leaf = start, end, ""
            if not self._is_stand_in(leaf):
                self.edits.append(leaf)
            return
        raw = self._text[start:end]
        if "\\" not in raw:
            if self._may_have_secrets(raw):
                self._search_inside(raw, start, quote, None)
            return
        inner = Unescaped(raw)
        self._work += _STRING_COST + _ESCAPE_COST * inner.escapes
        self._search_inside(inner.text, start, quote, inner)

    def _may_have_secrets(self, text: str) -> bool:
        """Return whether a string has one of the signs of secrets that the whole text has."""
        lower = text.lower()
        for sign in self._signs:
            if sign in lower:  # a loop is faster than `any`
                return True
        return self._has_runs and len(text) >= _SHORTEST_CARD

    def _search_inside(self, text: str, start: int, quote: str, inner: Unescaped | None) -> None:
        edits, work = self._search(text, max(0, self._limit - self._work), self._depth + 1)
        self._work += work
        for first, last, mark in edits:
            first_raw, last_raw = (first, last) if inner is None else (inner.raw(first), inner.raw(last))
            self.edits.append((start + first_raw, start + last_raw, escaped(mark, quote)))

    def _cut_off(self, levels: list[_Level], at: int) -> tuple[int, bool]:
        """Read the end of a document that is cut off, if it is one."""
        match = _CUT.match(self._text, at)
        if match is None or len(levels) == 1:
            return at, False
        end = len(self._text)
        level = levels[-1]
        start, stop = match.span("rest")
        if start == stop:
            return end, True
        key = self._key_text(*match.span("key")) if match["key"] else ""
        is_secret = level.is_secret or (key != "" and kind_of(key) != "")
        if (quote := match["rest"].lstrip("bBuU")[:1]) in {'"', "'"}:
            start += match["rest"].index(quote) + 1
            is_secret = is_secret or (level.names_pair and level.count == 1) or names_secret(level.previous)
            if self._has_arguments and level.is_list and not match["key"]:
                is_secret = self._is_argument(level, unescaped(self._text[start:stop])) or is_secret
            self._read_string(start, stop, quote, is_secret=is_secret)
        elif is_secret:
            self.edits.append((start, stop, ""))
        return end, True
