"""Finding what looks like a secret in a text.

One pattern of everything takes 200 ns a character. Here each shape has a word that must be there, which is searched for
at the speed of `memmem`, and only where it is there does a pattern run: one that begins with that word, if possible.
"""

from __future__ import annotations

import re
from typing import Final

SHORTEST: Final = 13
"""Characters of the shortest secret that no ':' or '=' announces: a card number."""

_QUOTE = r"""(?:\\*["'])?"""
_IS = rf"{_QUOTE}\s*[:=]\s*+{_QUOTE}+"
_HEADER = rf"""{_IS}((?!\[redacted\])(?:[^\r\n"'\\]|\\(?!["'rn]))+)"""
_VALUE = rf"""{_QUOTE}\s*[:=]\s*+(\\*["'])?+((?!\[redacted\])(?:(?(1)[^\r\n"'\\]|[^\s"',;&\\])|\\(?!["'rn]))+)"""
"""To the end of the line if it is quoted, and of the word if not; a quote ends both."""
_CREDENTIALS = r"\s+([a-z0-9._~+/=-]{8,})"


def _part(word: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return word, re.compile(pattern, re.DOTALL)


# Looking back after a word leaves the word in front, where the engine searches for it literally.
_IN_LOWER_CASE: Final = (
    _part("bearer", rf"bearer(?<!\wbearer){_CREDENTIALS}"),
    _part("basic", rf"basic(?<!\wbasic){_CREDENTIALS}"),
    _part("authorization", rf"authorization{_HEADER}"),
    _part("cookie", rf"cookie{_HEADER}"),
    _part("pass", rf"pass(?:word|wd|phrase){_VALUE}"),
    _part("pwd", rf"pwd{_VALUE}"),
    _part("secret", rf"secret{_VALUE}"),
    _part("token", rf"token(?<![^\W_]token){_VALUE}"),
    _part(
        "key",
        r"key(?:(?<=apikey)|(?<=api[_-]key)|(?<=accesskey)|(?<=access[_-]key)|(?<=privatekey)|(?<=private[_-]key))"
        + _VALUE,
    ),
)
"""Shapes whose case does not matter. The last group is the secret; what stands before it stays readable."""

_AS_WRITTEN: Final = (
    _part("://", r"://[^\s/@:]*:([^\s/@]+)(?=@)"),
    _part("-----BEGIN ", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    _part("eyJ", r"eyJ(?<!\weyJ)[A-Za-z0-9_-]{5,4096}+\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"),
    *(_part(f"k{mark}", rf"[srp]k{mark}(?<!\w[srp]k{mark})[A-Za-z0-9_-]{{12,}}") for mark in "-_"),
    _part("gh", r"gh[pousr]_(?<!\wgh[pousr]_)[A-Za-z0-9_-]{12,}"),
    _part("xox", r"xox[abeprs]-(?<!\wxox[abeprs]-)[A-Za-z0-9_-]{12,}"),
    *(
        _part(word, rf"{word}(?<!\w{word})[A-Za-z0-9_-]{{12,}}")
        for word in ("github_pat_", "glpat-", "hf_", "AKIA", "ASIA", "AIza")
    ),
)
_CARD: Final = re.compile(r"[3-6](?<!\w[3-6])(?:[ -]?[0-9]){12,18}\b")


def find_secrets(text: str) -> list[tuple[int, int]]:
    """Return where secrets are: the start and end of each, in order and apart from each other."""
    if len(text) < SHORTEST and ":" not in text and "=" not in text:
        return []
    lower = text.lower()
    if len(lower) != len(text):
        lower = text.replace("\u0130", "i").lower()  # the one letter whose lower case is two
    found = [
        match.span(part.groups) for word, part in _IN_LOWER_CASE if word in lower for match in part.finditer(lower)
    ]
    for word, part in _AS_WRITTEN:
        if word in text:
            found += [match.span(part.groups) for match in part.finditer(text)]
    found += [match.span() for match in _CARD.finditer(text) if _is_card_number(match[0])]
    return _merged(found) if found else found


def _merged(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _is_card_number(text: str) -> bool:
    """Apply the Luhn check (ISO/IEC 7812-1)."""
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    return sum(digits[0::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10
