"""Values that are secrets because of the name in front of them: `password=...`, `"apiKey": "..."`, `--token ...`.

The searches scan a text from left to right and never examine a masked part again, so that their time is linear in the
length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pellucid.telemetry.secrets.names import WORDS, ends_secret, has_word, names_secret

_SEARCH_COST: Final = 6
_NAME_COST: Final = 4
_VALUE_COST: Final = 10
_SHORTENED_COST: Final = 16

_IN_NAME: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$[]"
_LONGEST_NAME: Final = 64

_QUOTE: Final = r"""(?:\\{0,8}["'`]|%2[27]|&quot;)"""
_AFTER_NAME: Final = (
    rf"[\w.$\[\]-]{{0,64}}+)(?P<quote>{_QUOTE})?(?:"
    r"\s{0,64}+(?P<is>=>|:=|==?|:|%3[ad])\s{0,64}+"
    rf"|\s{{0,64}}[,\n]\s{{0,64}}{_QUOTE}?(?:value|val|content|data){_QUOTE}?\s{{0,64}}[:=]\s{{0,64}}+"
    rf"|\s{{0,64}}+,\s{{0,64}}+(?P<pair>)(?=b?{_QUOTE})"
    r"|(?P<tag>)>)"
)
_NAMES: Final = tuple((word, re.compile(f"(?P<name>{word}{_AFTER_NAME}", re.ASCII)) for word in WORDS)
_OPTION: Final = re.compile(r"--(?<!---)(?P<name>[\w-]{2,64}+)(?P<option>)[ \t]{1,8}+(?=[^\s-])", re.ASCII)
_BEFORE_PAIR: Final = re.compile(rf"(?:\(|\[\s{{0,8}}\[|[\])],\s{{0,8}}\[)\s{{0,8}}b?{_QUOTE}\Z")

_OPEN: Final = re.compile(rf"""[bruf]{{0,2}}(\"\"\"|\'\'\'|{_QUOTE})""", re.IGNORECASE)
_BARE: Final = re.compile(
    r"""(?:\[[^\[\]]{0,2048}+\]?|\{[^{}]{0,2048}+\}?)?"""
    r"""(?:[^\s"'`,;&\\<)\]}%]|\\(?!\\{0,8}["'`nrt])|[)\]}](?=\w)|<(?!/)|%(?!2[267c]|3b)"""
    r"""|[,;&](?!\s|\Z|\\{0,8}["'`]|[\w.$\[\]-]{1,40}\s?[=:])|\\{0,8}["'`](?=\w))*+""",
    re.IGNORECASE,
)
"""Value without quotes: a list, an object or a word, with punctuation that is clearly a part of the value."""

_LINE: Final = re.compile(r"""(?:[^\r\n"'`\\]|\\(?!\\{0,8}["'`nrt])|(?<==)\\{0,8}"[^"\r\n\\]*\\{0,8}")*+""")
"""Rest of the line, as in a header."""

_ELEMENT: Final = re.compile(r"[^<\r\n]*+")

_STAND_INS: Final = frozenset(
    {"any", "bool", "boolean", "bytes", "disabled", "empty", "enabled", "expired", "false", "hidden", "int", "integer"}
    | {"invalid", "masked", "missing", "nil", "no", "none", "null", "number", "object", "off", "on", "optional"}
    | {"required", "str", "string", "text", "true", "undefined", "unknown", "unset", "x", "xx", "xxx", "xxxx", "yes"}
)
_PLACEHOLDER: Final = re.compile(
    r"[*•.x…-]*|n/a|(?:name|key)=value|<[\w\s.-]{1,40}>?|\$\{?\w{0,40}(?::-?)?\}?|\{\{?[\s\w.]{0,40}\}{0,2}|%\(?\w{0,40}\)?s?|\[\w{0,20}\]"
)
"""Types, placeholders and other stand-ins for a value."""

_CODE: Final = re.compile(
    r"\{\s*\\*\"type\\*\"\s*:\s*\\*\"(?:string|integer|number|boolean|object|array)\\*\"[^{}]*\}|"
    r"[A-Za-z_.]{1,60}\(.{0,60}|[A-Za-z_.]{1,60}\[[\w.:\"'-]{0,40}\]?"
    r"|(?:self|cls|this|os|process|env|args|ctx|config|settings|options|request|response|params|data)\.[\w.]{1,60}"
)
_PROSE: Final = re.compile(r"[,.;]?[ \t]+(?:[a-z'-]+(?!\w*\s?[:=])|[=|])", re.IGNORECASE)
"""Text after a word of a sentence, or after a type."""

_SENTENCE: Final = re.compile(r"(?!(?i:bearer|basic|token|digest))[A-Za-z]{1,15}(?:[ ,.]{1,2}[a-z]{1,15}){1,60}[.!?]?")
_LONGEST_WORD: Final = 12
_LONGEST_BLANK: Final = 100

_SHORTENED: Final = re.compile(r"input_value=([^\n]{0,120}?)(?:\.\.\.|…)([^\n]{0,60}?)(?=, input_type=|\Z|\n)")
_REST: Final = re.compile(r"""([\w.$-]{0,40})["'](?:\s?:\s?["']?([^"'\n]{1,60})|(?=[,}\])]))""")


def may_assign(text: str, lower: str) -> bool:
    """Return whether a text can have such values; `lower` is the text in lower case."""
    return has_word(lower) or "--" in text or "input_value=" in text


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
    if "input_value=" in text:
        yield from _find_shortened(text)


def _find(pattern: re.Pattern[str], text: str, lower: str) -> Iterator[tuple[int, int, int]]:
    match = pattern.search(lower)
    while match is not None:
        end = match.end()
        name = _name(text, match)
        if names_secret(name):
            start, stop = _value(text, match, name)
            yield start, stop, _VALUE_COST
            end = max(end, stop)
        else:
            yield 0, 0, _NAME_COST
        match = pattern.search(lower, end)


def _name(text: str, match: re.Match[str]) -> str:
    """Return the whole name; empty if no value follows in this form."""
    preceding = text[max(0, match.start() - _LONGEST_NAME) : match.start()]
    before = preceding.rstrip(_IN_NAME)
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
    return front + text[start:end]


def _value(text: str, match: re.Match[str], name: str) -> tuple[int, int]:
    """Return the start and end of the value; equal if there is no value, or it is clearly not a secret."""
    start = match.end()
    if match.lastgroup == "tag":
        end = _end(_ELEMENT, text, start)
        is_blank = not text.startswith("</", end)
    elif (opened := _OPEN.match(text, start)) is not None:
        start, end = opened.end(), _closing(text, opened.end(), opened[1])
        is_blank = _is_blank(text[start : min(end, start + _LONGEST_BLANK)])
    elif ("authorization" in name.lower() or "cookie" in name.lower()) and text[start : start + 1] not in {"[", "{"}:
        end = _end(_LINE, text, start)
        is_blank = _is_blank(text[start:end].strip()) or _SENTENCE.fullmatch(text, start, end) is not None
    else:
        end = _end(_BARE, text, start)
        if start == end:
            return start, start
        sign = match["is"] if match.lastgroup == "is" else ""
        is_blank = end - start <= _LONGEST_BLANK and _is_no_value(text, start, end, name, sign)
    return start, start if is_blank else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _is_blank(value: str) -> bool:
    """Return whether a value is a type, a placeholder or another stand-in for a value."""
    return value.lower() in _STAND_INS if value.isalnum() else _PLACEHOLDER.fullmatch(value) is not None


def _is_no_value(text: str, start: int, end: int, name: str, sign: str) -> bool:
    """Return whether a span of the text is code, a type, a placeholder, or the next word of a sentence."""
    value = text[start:end]
    if _is_blank(value.rstrip(":.!?")) or (not value.isalnum() and _CODE.fullmatch(value)):
        return True
    if sign == ":" and value.isalpha() and len(value) <= _LONGEST_WORD and text[start - 1].isspace():
        return _PROSE.match(text, end) is not None
    # A keyword argument: `connect(password=password)`.
    return text[end : end + 1] in {",", ")"} and (value.endswith(name.lower()) or name.lower().endswith(value))


def _closing(text: str, start: int, quote: str) -> int:
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
    """Yield the rests of values in an input that pydantic has shortened in the middle, and the work."""
    for match in _SHORTENED.finditer(text):
        yield 0, 0, _SHORTENED_COST
        rest = _REST.match(match[2])
        if rest is None or match[1].startswith(("'", '"')):
            continue  # a text without names
        offset = match.start(2)
        if rest[2] is None:
            yield offset, offset + rest.end(1), 0
        elif ends_secret(rest[1]):
            yield offset + rest.start(2), offset + rest.end(2), 0
