"""Values that are secrets because of the name in front of them: `password=...`, `"apiKey": "..."`, `--token ...`.

The searches scan a text from left to right and never examine a masked part again, so that their time is linear in the
length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.blanks import BLANKS
from pellucid.telemetry.secrets.names import WORDS, Kind, ends_secret, kind_of

_SEARCH_COST: Final = 6
_NAME_COST: Final = 4
_VALUE_COST: Final = 10
_SHORTENED_COST: Final = 16

IN_NAME: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$[]"
_LONGEST_NAME: Final = 64

_QUOTE: Final = r"""(?:\\{0,8}["'`]|%2[27]|&quot;)"""
_BLANK: Final = rf"[\s{BLANKS}]"
_AFTER_NAME: Final = (
    rf"[\w.$\[\]-]{{0,64}}+)(?P<quote>{_QUOTE})?(?:"
    rf"\*{{0,2}}{_BLANK}{{0,64}}+(?P<is>=>|:=|==?|:|%3[ad])\*{{0,2}}{_BLANK}{{0,64}}+"
    rf"|{_BLANK}{{0,64}}[,\n ]\s{{0,64}}{_QUOTE}?(?:value|val|content|data){_QUOTE}?\s{{0,64}}[:=]\s{{0,64}}+"
    rf"|\s{{0,64}}+,\s{{0,64}}+(?P<pair>)(?=b?{_QUOTE})"
    rf"|(?:{_BLANK}{{1,8}}\(?|\()(?P<literal>)(?={_QUOTE})"
    r"|(?P<tag>)>)"
)
_NAMES: Final = tuple(
    (word, re.compile(f"(?P<name>{start or word}{_AFTER_NAME}", re.ASCII)) for word, start in WORDS.items()
)
_OPTION: Final = re.compile(r"--(?<!---)(?P<name>[\w-]{2,64}+)(?P<option>)[ \t]{1,8}+(?=[^\s-])", re.ASCII)
_LINE_STARTS: Final = " \t-{,;&?"
"""Characters before `pass:` on its line; after others, it is a word of a sentence."""

_BEFORE_PAIR: Final = re.compile(rf"(?:\(|\[\s{{0,8}}\[|[\])],\s{{0,8}}\[)\s{{0,8}}b?{_QUOTE}\Z")

_OPEN: Final = re.compile(rf"""[bruf]{{0,2}}(\"\"\"|\'\'\'|{_QUOTE})""", re.IGNORECASE)
_BARE: Final = re.compile(
    r"""(?:[^\s"'`,;&\\<)\]}%]|\\(?!\\{0,8}["'`nrt])|[)\]}](?=\w)|<(?!/)|%(?!2[267c]|3b)"""
    r"""|[,;&](?!\s|\Z|\\{0,8}["'`]|[\w.$\[\]-]{1,40}\s?[=:])|\\{0,8}["'`](?=\w))*+""",
    re.IGNORECASE,
)
"""Value without quotes, or its end after a list or object, with punctuation that is clearly a part of the value."""

_BRACKET: Final = re.compile(
    r"""(?P<open>[\[{(])|(?P<close>[\]})])|(?<!\w)(?:"[^"\\\n]*+"|'[^'\\\n]*+'|(?P<quote>\\{0,8}["'`]))"""
)
_LONGEST_LIST: Final = 16 * 1024
_MOST_BRACKETS: Final = 2048
"""Characters of a list or object that is masked as a whole, and its brackets and quotes.

One without an end is masked up to here.
"""

_LINE: Final = re.compile(r"""(?:[^\r\n"'`\\]|\\(?!\\{0,8}["'`nrt])|(?<==)\\{0,8}"[^"\r\n\\]*\\{0,8}")*+""")
"""Rest of the line, as in a header."""

_WORDS: Final = re.compile(r"mnemonic|(?:seed|recovery).?phrase", re.IGNORECASE)
"""Names of secrets that are words."""

_FILLS_LINE: Final = re.compile(rf"authorization|cookie|{_WORDS.pattern}", re.IGNORECASE)
_ELEMENT: Final = re.compile(r"[^<\r\n]*+")

_STAND_INS: Final = frozenset(
    {"any", "bool", "boolean", "bytes", "disabled", "empty", "enabled", "expired", "false", "hidden", "int", "integer"}
    | {"invalid", "masked", "missing", "nil", "no", "none", "null", "number", "object", "off", "on", "optional"}
    | {"required", "str", "string", "text", "true", "undefined", "unknown", "unset", "x", "xx", "xxx", "xxxx", "yes"}
)
_PLACEHOLDER: Final = re.compile(
    r"[*•.x…-]*|n/a|(?:name|key)=value|<[A-Za-z][A-Za-z\s._-]{0,40}>?|\$\{[\w.]{0,40}(?::-?)?\}?"
    r"|\$(?:[A-Z_][A-Z0-9_]{0,40}|[a-z_]{0,40})"
    r"|\{\{[\s\w.]{0,40}\}{0,2}|\{[\sA-Za-z_.]{0,40}\}?|%\(\w{0,40}\)?s?|%[A-Z_]{0,40}|%[a-z]|\[[A-Za-z_ ]{0,20}\]"
)
"""Types, placeholders and other stand-ins for a value."""

_CODE: Final = re.compile(
    r"\{(?![^{}]*\"(?:const|default|enum|examples?|value)\\*\")\s*\\*\"type\\*\"\s*:\s*\\*\"(?:string|integer|number|boolean|object|array)\\*\"[^{}]*\}|"
    r"[A-Za-z_.]{1,60}\(.{0,60}|[A-Za-z_.]{1,60}\[[\w.:\"'-]{0,40}\]?"
    r"|(?:self|cls|this|os|process|env|args|ctx|config|settings|options|request|response|params|data)\.[\w.]{1,60}"
)
_CLASS: Final = re.compile(r"(?:[A-Z][a-z]{1,20}){2,5}")
_PROSE: Final = re.compile(r"[,.;]?[ \t]+(?:[a-z'-]+(?!\w*\s?[:=])|[=|])", re.IGNORECASE)
"""Text after a word of a sentence, or after a type."""

_SENTENCE: Final = re.compile(r"(?!(?i:bearer|basic|token|digest))[A-Za-z]{1,15}(?:[ ,.]{1,2}[a-z]{1,15}){1,60}[.!?]?")
_LONGEST_WORD: Final = 12
_LONGEST_BLANK: Final = 100

_SHORTENED: Final = re.compile(r"input_value=([^\n]{0,180}?)(?:, input_type=|\Z|\n)")
_OMISSION: Final = re.compile(r"\.\.\.|…")
_LONGEST_REST: Final = 60
_REST: Final = re.compile(r"""([\w.$-]{0,40})["'](?:\s?:\s?["']?([^"'\n]{1,60})|(?=[,}\])]))""")


def find_assigned(text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of values whose name is that of a secret, and the work.

    `lower` is the text in lower case. The work for words that may be part of a name is yielded first, before their
    values are examined.
    """
    yield 0, 0, _SEARCH_COST
    for word, pattern in _NAMES:
        if words := lower.count(word):
            yield 0, 0, words
            yield from _find(pattern, text, lower)
    if options := text.count("--"):
        yield 0, 0, options
        yield from _find(_OPTION, text, lower)
    if inputs := text.count("input_value="):
        yield 0, 0, _SHORTENED_COST * inputs
        yield from _find_shortened(text)


def _find(pattern: re.Pattern[str], text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    match = pattern.search(lower)
    while match is not None:
        end = match.end()
        name = _name(text, match)
        if kind_of(name):
            start, stop, work = _value(text, match, name)
            yield start, stop, work
            end = max(end, stop)
        else:
            yield 0, 0, _NAME_COST
        match = pattern.search(lower, end)


def _name(text: str, match: re.Match[str]) -> str:
    """Return the whole name; empty if no value follows in this form."""
    preceding = text[max(0, match.start() - _LONGEST_NAME) : match.start()]
    before = preceding.rstrip(IN_NAME)
    front = preceding[len(before) :]
    match match.lastgroup:
        case "pair" if not (front.startswith("-") or _BEFORE_PAIR.search(before)):
            return ""
        case "tag" if not before.endswith("<"):
            return ""
    if before.endswith("\\"):
        front = front[1:]  # the letter of an escape
    elif before.endswith("%"):
        front = front[2:]
    start, end = match.span("name")
    name = front + text[start:end]
    if match.lastgroup == "literal":  # SQL: `WITH PASSWORD 'hunter2'`
        return "" if match["quote"] or not name.lower().endswith(("password", "passwd")) else name
    is_word = name == "pass" and match.lastgroup == "is" and match["is"] == ":" and not match["quote"]
    return "" if is_word and before.rpartition("\n")[2].strip(_LINE_STARTS) else name


def _value(text: str, match: re.Match[str], name: str) -> tuple[int, int, int]:
    """Return the start and end of the value, equal if it is clearly not a secret, and the work."""
    start, work = match.end(), _VALUE_COST
    sign = match["is"] if match.lastgroup == "is" else ""
    if match.lastgroup == "tag":
        end = _end(_ELEMENT, text, start)
        is_empty = not text.startswith("</", end)
    elif (opened := _OPEN.match(text, start)) is not None:
        start, end = opened.end(), closing(text, opened.end(), opened[1])
        is_empty = is_blank(text[start : min(end, start + _LONGEST_BLANK)])
    elif _FILLS_LINE.search(name) and text[start : start + 1] not in {"[", "{"}:
        end = _end(_LINE, text, start)
        is_empty = _is_no_line(text[start:end].strip(), name, sign)
    elif text[start : start + 1] in {"[", "{"} and kind_of(name) != "any":
        return start, start, work
    else:
        end, brackets = _after_brackets(text, start)
        end, work = _end(_BARE, text, end), work + brackets
        if start == end:
            return start, start, work
        is_empty = end - start <= _LONGEST_BLANK and _is_no_value(text, start, end, name, sign)
    return start, start if is_empty else end, work


def _is_no_line(value: str, name: str, sign: str) -> bool:
    """Return whether the rest of a line after `Authorization:` or `cookie =` is a sentence, code or a stand-in."""
    if is_blank(value) or (_SENTENCE.fullmatch(value) and not _WORDS.search(name)):
        return True
    return sign == "=" and (_CODE.fullmatch(value) or _CLASS.fullmatch(value)) is not None


def _is_short_secret(value: str, name: str, sign: str, kind: Kind) -> bool:
    """Return whether a value is secret under `pin` or `pass`, which are also words of a sentence."""
    if kind == "text" and value.isdigit():
        return False
    return sign != ":" or not name.isupper()  # `PASS: test_login`


def _is_type_or_variable(value: str, name: str, sign: str, is_spaced: bool) -> bool:
    """Return whether a value is a type (`token: Token`) or a variable (`self.token = token`, `token == end`)."""
    word = value.rstrip(":")
    if not is_spaced or not word.isidentifier():
        return False
    if sign == "==" or word == "await":
        return True
    is_same = name.lower().endswith(word.lower())
    return is_same and (word[:1].isupper() if sign == ":" else "." in name or word == name)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _after_brackets(text: str, start: int) -> tuple[int, int]:
    """Return the end of the list or object at `start`, with all that is inside of it, and the work."""
    if text[start : start + 1] not in {"[", "{"}:
        return start, 0
    depth, at, limit = 0, start, min(len(text), start + _LONGEST_LIST)
    for work in range(_MOST_BRACKETS):
        match = _BRACKET.search(text, at, limit)
        if match is None:
            return limit, work
        at = match.end()
        if match.lastgroup == "quote":
            at = closing(text, at, match["quote"]) + len(match["quote"])
        elif match.lastgroup == "open":
            depth += 1
        elif match.lastgroup == "close" and (depth := depth - 1) == 0:
            return at, work
    return limit, _MOST_BRACKETS


def is_blank(value: str) -> bool:
    """Return whether a value is a type, a placeholder or another stand-in for a value."""
    return value.lower() in _STAND_INS if value.isalnum() else _PLACEHOLDER.fullmatch(value) is not None


def _is_no_value(text: str, start: int, end: int, name: str, sign: str) -> bool:
    """Return whether a span of the text is code, a type, a placeholder, or the next word of a sentence."""
    value = text[start:end]
    if is_blank(value.rstrip(":.!?")) or (not value.isalnum() and _CODE.fullmatch(value)):
        return True
    if (kind := kind_of(name)) != "any" and not _is_short_secret(value, name, sign, kind):
        return True
    if _is_type_or_variable(value, name, sign, text[start - 1].isspace()):
        return True
    if sign == ":" and value.isalpha() and len(value) <= _LONGEST_WORD and text[start - 1].isspace():
        return _PROSE.match(text, end) is not None
    # A keyword argument: `connect(password=password)`.
    return text[end : end + 1] in {",", ")"} and (value.endswith(name.lower()) or name.lower().endswith(value))


def closing(text: str, start: int, quote: str) -> int:
    """Return the end of a quoted value: its closing quote, or else the end of the line.

    In JSON within JSON, quotes are escaped with backslashes, and quotes within the value with more of them.
    """
    if len(quote.lstrip("\\")) > 1:
        end = text.find(quote, start)
        return len(text) if end < 0 else end
    character, depth = quote[-1], len(quote) - 1
    at = text.find(character, start)
    while at >= 0:
        before = text[max(start, at - 32) : at]
        slashes = len(before) - len(before.rstrip("\\"))
        if slashes < depth or (slashes - depth) % (2 * depth + 2) == 0:
            break
        at = text.find(character, at + 1)
    end = len(text) if at < 0 else at - min(slashes, depth)
    for mark in "\r\n":
        line = text.find(mark, start, end)
        end = end if line < 0 else line
    return end


def _find_shortened(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the rests of values in an input that pydantic has shortened in the middle."""
    for match in _SHORTENED.finditer(text):
        start, end = match.span(1)
        omission = _OMISSION.search(text, max(start, end - _LONGEST_REST), end)
        if omission is None or match[1].startswith(("'", '"')):
            continue  # a text without names
        offset = omission.end()
        rest = _REST.match(text, offset, end)
        if rest is None:
            continue
        if rest[2] is None:
            yield offset, rest.end(1), 0
        elif ends_secret(rest[1]):
            yield *rest.span(2), 0
