"""Finding tools by what they are for: BM25 over names, tags, descriptions and parameter names."""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

from pellucid.tools.tool import Tool

K1: Final = 1.2
B: Final = 0.75
"""The usual parameters of BM25: how soon further occurrences stop to count, and how much long texts are discounted."""

NAME, TAG, DESCRIPTION, PARAMETER = 3.0, 2.0, 1.0, 0.5
"""How often an occurrence counts, by where it is."""

MOST_COMPLETIONS: Final = 16
"""Words of the index that stand in for a word of the query that is the beginning, or a part, of them."""

SHORTEST_PART: Final = 3
"""Characters that a part of a word has to have to stand for it."""

EMPTY: Final = frozenset(
    {"a", "an", "and", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "this"}
    | {"to", "with"}
)
"""Words that say nothing of what a tool does."""

_DENSE: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af\uac00-\ud7af"
)
"""Scripts without spaces, or with whole phrases between them: Thai and its neighbours, Chinese, Japanese, Korean."""

_WORD: Final = re.compile(rf"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[{_DENSE}]+|[^\W\d_A-Za-z{_DENSE}]+")
_MIXED: Final = re.compile(r"[A-Za-z]*[a-z][A-Z][A-Za-z]*")
_IS_DENSE: Final = re.compile(f"[{_DENSE}]")
_ACCENT: Final = re.compile("[\u0300-\u036f]")


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool that was found."""

    tool: Tool
    score: float


class SearchIndex:
    """An inverted index of tools. It never changes; the same tools and query always give the same ranking."""

    __slots__ = ("_by_name", "_norms", "_postings", "_tools", "_words")

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
        """Return the `most` best tools for a query, best first, and how many match at all.

        A tool whose name is the query comes first; tools of equal score are sorted by name.
        """
        scores: dict[int, float] = defaultdict(float)
        for word, count in Counter(words(query)).items():
            for known in self._known(word):
                postings = self._postings[known]
                rarity = math.log(1 + (len(self._tools) - len(postings) + 0.5) / (len(postings) + 0.5))
                for number, found in postings:
                    scores[number] += count * rarity * found * (K1 + 1) / (found + self._norms[number])
        for number in self._by_name.get(query.strip().lower(), ()):
            scores[number] = math.inf
        best = heapq.nsmallest(most, scores.items(), key=lambda item: (-item[1], item[0]))
        return [Hit(self._tools[number], score) for number, score in best], len(scores)

    def _known(self, word: str) -> Iterable[str]:
        """Return the word itself if any tool has it, else words that begin with it, else that have it in them."""
        if word in self._postings:
            return (word,)
        first = bisect_left(self._words, word)
        begun = [known for known in self._words[first : first + MOST_COMPLETIONS] if known.startswith(word)]
        if begun or len(word) < SHORTEST_PART:
            return begun
        return list(islice((known for known in self._words if word in known), MOST_COMPLETIONS))


def words(text: str) -> Iterator[str]:
    """Yield the words that say something, without endings and accents; `camelCase` and `snake_case` are two words each.

    What is written in mixed case is one word too, so that `GitHub` is found as `github`, and the other way round. Of
    what is written without spaces each two characters that follow each other are a word.
    """
    for word in map(str.lower, _WORD.findall(text if text.isascii() else _plain(text))):
        if len(word) > 1 and _IS_DENSE.match(word):
            yield from map("".join, pairwise(word))
        elif word not in EMPTY:
            yield _stem(word)
    for word in _MIXED.findall(text):
        yield _stem(word.lower())


def _plain(text: str) -> str:
    """Return a text without accents, and with characters of one width."""
    spelled = unicodedata.normalize("NFKD", text.replace("ß", "ss").replace("ẞ", "SS"))
    return unicodedata.normalize("NFKC", _ACCENT.sub("", spelled))


def _stem(word: str) -> str:
    """Return a word without its plural, `-ing` or `-ed`; alike for most forms of one word, if not always a word."""
    if len(word) > 4 and word.endswith("ies"):  # noqa: PLR2004  (shorter ones are no plurals)
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
