"""Which names an expression of PromQL mentions: a tokenizer, enough for expressions that Prometheus accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<range>\[[^\]]*\])
      | (?P<number>\d[\w.+]*|\$\w+)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<other>[^\s])""",
    re.VERBOSE,
)
_GROUPING: Final = ("by", "without", "on", "ignoring", "group_left", "group_right")
_WORDS: Final = ("and", "or", "unless", "bool", "offset", "inf", "nan")
_NEW_LABEL: Final = ("label_replace", "label_join")


@dataclass(slots=True)
class Names:
    """What an expression mentions. Attributes: metrics: names of series; labels: in matchers and groupings."""

    metrics: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)


def names_in(expression: str) -> Names:
    """Return the names of series and labels in an expression."""
    found = Names()
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(expression)]
    depth = 0
    grouping = False
    for n, (kind, text) in enumerate(tokens):
        after = tokens[n + 1][1] if n + 1 < len(tokens) else ""
        if text in "{}":
            depth += 1 if text == "{" else -1
        elif grouping:
            if kind == "name":
                found.labels.add(text)
            grouping = text != ")"
        elif kind != "name" or text.lower() in _WORDS:
            continue
        elif text in _GROUPING:
            grouping = after == "("
        elif depth:
            found.labels.add(text)
        elif after != "(" and tokens[n + 1 : n + 2] != [("name", "by")]:
            found.metrics.add(text)
    return found
