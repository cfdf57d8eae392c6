"""Search for tools by purpose: BM25 over names, tags, descriptions and parameter names."""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from pellucid.tools.tool import Tool

K1: Final = 1.2
B: Final = 0.75
"""Usual parameters of BM25: saturation of term frequency (`K1`) and normalisation by length (`B`)."""

NAME, TAG, DESCRIPTION, PARAMETER = 3.0, 2.0, 1.0, 0.5
"""Weight of an occurrence, by field."""

MAX_COMPLETIONS: Final = 16
"""Maximum number of indexed words that match a query word as their prefix or substring."""

MIN_SUBSTRING: Final = 3
"""Minimum characters of a query word that matches as a substring."""

STOP_WORDS: Final = frozenset(
    {"a", "an", "and", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "this"}
    | {"to", "with"}
)
"""Stop words, which do not describe a tool."""

_DENSE: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af\uac00-\ud7af"
)
"""Scripts without spaces between words: Thai and its neighbours, Chinese, Japanese; and Korean, whose spaces separate
phrases."""

_WORD: Final = re.compile(rf"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[{_DENSE}]+|[^\W\d_A-Za-z{_DENSE}]+")
_MIXED: Final = re.compile(r"[A-Za-z]*[a-z][A-Z][A-Za-z]*")
_IS_DENSE: Final = re.compile(f"[{_DENSE}]")
_ACCENT: Final = re.compile("[\u0300-\u036f]")


class Hit(NamedTuple):
    """Tool that matches a query.

    Attributes:
        tool: The tool.
        score: BM25 score; infinite for a tool whose name is the query.
    """

    tool: Tool
    score: float


class SearchIndex:
    """Immutable inverted index of tools. The same tools and query always give the same ranking."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: Sequence[Tool] = sorted(tools, key=lambda tool: tool.name)
        self._by_name: dict[str, list[int]] = defaultdict(list)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        lengths: list[float] = []
        for number, tool in enumerate(self._tools):
            self._by_name[tool.name.lower()].append(number)
            counts = _weighted(tool)
            lengths.append(sum(counts.values()))
            for word, count in counts.items():
                self._postings[word].append((number, count))
        average = sum(lengths) / len(lengths) if lengths else 1.0
        self._norms = [K1 * (1 - B + B * length / (average or 1.0)) for length in lengths]
        self._words = sorted(self._postings)

    def search(self, query: str, most: int) -> tuple[list[Hit], int]:
        """Return the `most` best tools for a query, best first, and the number of all matches.

        A tool whose name is the query comes first; tools of equal score are sorted by name.
        """
        scores: dict[int, float] = defaultdict(float)
        for word, count in Counter(words(query)).items():
            for term in self._terms(word):
                postings = self._postings[term]
                rarity = math.log(1 + (len(self._tools) - len(postings) + 0.5) / (len(postings) + 0.5))
                for number, frequency in postings:
                    scores[number] += count * rarity * frequency * (K1 + 1) / (frequency + self._norms[number])
        for number in self._by_name.get(query.strip().lower(), ()):
            scores[number] = math.inf
        best = heapq.nsmallest(most, scores.items(), key=lambda item: (-item[1], item[0]))
        return [Hit(self._tools[number], score) for number, score in best], len(scores)

    def _terms(self, word: str) -> Iterable[str]:
        """Return the word itself if it is indexed, else indexed words that start with it, else that contain it."""
        if word in self._postings:
            return (word,)
        first = bisect_left(self._words, word)
        completions = [term for term in self._words[first : first + MAX_COMPLETIONS] if term.startswith(word)]
        if completions or len(word) < MIN_SUBSTRING:
            return completions
        return list(islice((term for term in self._words if word in term), MAX_COMPLETIONS))


def words(text: str) -> Iterator[str]:
    """Yield the words of a text without stop words, endings and accents.

    `camelCase` and `snake_case` are two words each. A word in mixed case is also yielded as one word, so that `GitHub`
    matches `github` and the other way round. In scripts without spaces, every two adjacent characters are a word.
    """
    for word in map(str.lower, _WORD.findall(text if text.isascii() else _plain(text))):
        if len(word) > 1 and _IS_DENSE.match(word):
            yield from map("".join, pairwise(word))
        elif word not in STOP_WORDS:
            yield _stem(word)
    for word in _MIXED.findall(text):
        yield _stem(word.lower())


def _plain(text: str) -> str:
    """Return a text without accents and with normalised character widths."""
    spelled = unicodedata.normalize("NFKD", text.replace("ß", "ss").replace("ẞ", "SS"))
    return unicodedata.normalize("NFKC", _ACCENT.sub("", spelled))


def _stem(word: str) -> str:
    """Return a word without its plural, `-ing` or `-ed` ending: equal for most forms of a word, not always a word."""
    if len(word) > 4 and word.endswith("ies"):  # noqa: PLR2004  (shorter words are not plurals)
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):  # noqa: PLR2004
        word = word[:-1]
    for ending in ("ing", "ed", "e"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            return word[: -len(ending)]
    return word


def _weighted(tool: Tool) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    parameters: Any = tool.input_schema.get("properties")
    fields = (
        (NAME, tool.name),
        (TAG, " ".join(tool.tags)),
        (DESCRIPTION, tool.description),
        (PARAMETER, " ".join(map(str, parameters)) if isinstance(parameters, dict) else ""),
    )
    for weight, text in fields:
        for word in words(text):
            counts[word] += weight
    return counts
