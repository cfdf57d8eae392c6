"""Parts of a PromQL expression: its selectors, and the labels that it groups by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9][\w.]*|[=!<>]+~?|\S')
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_GROUPINGS: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS: Final = _GROUPINGS | {"and", "bool", "inf", "nan", "offset", "or", "unless"}


@dataclass(frozen=True, slots=True)
class Selector:
    """Selector of series. Attributes: name: metric, or empty; matchers: conditions on labels, as they are written."""

    name: str
    matchers: tuple[str, ...] = ()

    @property
    def labels(self) -> set[str]:
        """Labels of its matchers."""
        return {found[0] for each in self.matchers if (found := _NAME.match(each))}

    def __str__(self) -> str:
        return f"{self.name}{{{','.join(self.matchers)}}}" if self.matchers else self.name


def parse(expression: str) -> tuple[list[Selector], set[str]]:
    """Return the selectors of an expression, and all labels that it groups by."""
    tokens = _TOKEN.findall(expression)
    selectors, grouped = [], set()
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if token in _GROUPINGS and following == "(":
            end = tokens.index(")", at)
            grouped |= {each for each in tokens[at + 2 : end] if each != ","}
            at = end
        elif following == "{" or token == "{":
            start = at + 2 if following == "{" else at + 1
            end = tokens.index("}", start)
            matchers = "".join(tokens[start:end])
            found = tuple(re.findall(r'[^,"]+"(?:\\.|[^"\\])*"', matchers))
            selectors.append(Selector(token if following == "{" else "", found))
            at = end
        elif _NAME.fullmatch(token) and following not in {"(", *_GROUPINGS} and token not in _WORDS:
            selectors.append(Selector(token))
        at += 1
    return selectors, grouped


class Names(NamedTuple):
    """Names of series, and of labels in matchers and groupings."""

    metrics: set[str]
    labels: set[str]


def names_in(expression: str) -> Names:
    """Return what an expression mentions."""
    selectors, grouped = parse(expression)
    return Names({each.name for each in selectors if each.name}, grouped.union(*(each.labels for each in selectors)))
