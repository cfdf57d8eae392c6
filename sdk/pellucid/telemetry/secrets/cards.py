"""Numbers of payment cards: ranges of issuers, groups of digits, and the check digit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_ISSUERS: Final = (
    # issuer, first digits, sizes of groups
    ("Visa", "4[0-9]{3}", (4, 4, 4, 4)),
    ("Mastercard", "5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720", (4, 4, 4, 4)),
    ("Discover", "6011|64[4-9][0-9]|65[0-9]{2}", (4, 4, 4, 4)),
    ("JCB", "352[89]|35[3-8][0-9]", (4, 4, 4, 4)),
    ("UnionPay", "62[0-9]{2}", (4, 4, 4, 4)),
    ("Maestro", "50(?:18|20|38)|6304|6759|676[1-3]", (4, 4, 4, 4)),
    ("American Express", "3[47][0-9]{2}", (4, 6, 5)),
    ("Diners Club", "30[0-5][0-9]|3[689][0-9]{2}", (4, 6, 4)),
)

_MARKS: Final = " \t\xa0\u2002-\u200a\u202f\u3000\u2010-\u2013\u2212-"
"""Blanks and dashes between the groups of digits, for a set in a pattern; one or two of them."""

_START: Final = re.compile(rf"[2-6](?<![0-9.].)[0-9]{{3}}(?=[0-9]{{10}}|[{_MARKS}]{{1,2}}[0-9]{{4}})")
"""Start of a card number of any issuer: a search that is fast where digits are rare."""

_CLASSES: Final = bytes.maketrans(b"123456789-\t\xa0?", b"000000000    ")
_DIGITS: Final = b"0" * 14
_GROUPS: Final = b"0000 0000"
_APART: Final = b"0000  0000"
"""Starts of numbers with all digits as 0 and all marks as spaces ('?' stands for those that are not in Latin-1).

Texts without them take a quarter of a pattern's time.
"""

_START_COST: Final = 4
_CARD_COST: Final = 8

_IN_JSON: Final = re.compile(r"(?:\":|\[[-+0-9.,eE\s]*)\s*\Z")
_AFTER_IN_JSON: Final = re.compile(r"\s*(?:[,\]}]|\Z)")
_NAMED: Final = re.compile(r"card|credit|\bpan\b|\bcc", re.IGNORECASE)
_ONCE: Final = bytes(code - ord("0") if code in b"0123456789" else 0 for code in range(256))
_DOUBLED: Final = bytes(sum(divmod(2 * value, 10)) for value in _ONCE)
"""Values of digits in the check sum, by byte."""

_LOOK_BACK: Final = 200


def _pattern() -> re.Pattern[str]:
    forms = []
    for _, first, (_, *sizes) in _ISSUERS:
        for mark in ("", f"[{_MARKS}]{{1,2}}"):
            rest = "".join(f"{mark}[0-9]{{{size}}}" for size in sizes)
            forms.append(f"(?:{first}){rest}")
    return re.compile(rf"(?<![0-9.])(?:(?<![A-Za-z])|(?<=\\[nrt]))(?:{'|'.join(forms)})(?![0-9]|\.[0-9])", re.ASCII)


_CARD: Final = _pattern()


def may_have_cards(text: str) -> bool:
    """Return whether a text has the start of a card number."""
    classes = text.encode("latin-1", "replace").translate(_CLASSES)
    return (_GROUPS in classes or _DIGITS in classes or _APART in classes) and _START.search(text) is not None


def find_cards(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of card numbers, and the work. A number in JSON counts only if its name is of a card."""
    for beginning in _START.finditer(text):
        start = beginning.start()
        end = _end_of_card(text, start)
        yield start, end, _CARD_COST if start < end else _START_COST


def is_card(name: str, number: str) -> bool:
    """Return whether a number in a document is that of a card, which its name must say."""
    return _NAMED.search(name) is not None and _CARD.fullmatch(number) is not None and _passes_check(number)


def _end_of_card(text: str, start: int) -> int:
    """Return the end of a card number, or `start` if there is none."""
    match = _CARD.match(text, start)
    if match is None or not _passes_check(match[0]) or _is_number_in_json(text, *match.span()):
        return start
    return match.end()


def _is_number_in_json(text: str, start: int, end: int) -> bool:
    if not text[start:end].isdigit() or not _AFTER_IN_JSON.match(text, end):
        return False
    before = text[max(0, start - _LOOK_BACK) : start]
    return _IN_JSON.search(before) is not None and _NAMED.search(before[-40:]) is None


def _passes_check(text: str) -> bool:
    """Apply the Luhn check (ISO/IEC 7812-1)."""
    digits = text.encode("ascii", "ignore").translate(None, b" -\t")[::-1]
    return (sum(digits[::2].translate(_ONCE)) + sum(digits[1::2].translate(_DOUBLED))) % 10 == 0
