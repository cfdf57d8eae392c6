"""Quality of a ranking of tools: the scoring that BM25 is compared with, and recall and reciprocal rank."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from pellucid import Tool
from pellucid.tools.search import SearchIndex

SHOWN = 15
"""Tools that `tool_search` shows for a query."""

Ranking: TypeAlias = Callable[[str], list[Tool]]
"""Function that returns the tools that are shown for a query, best first."""


@dataclass(frozen=True, slots=True)
class Query:
    """Query of a model. Attributes: kind: how near its words are to those of tools; relevant: tools that answer it."""

    text: str
    kind: str
    relevant: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Means over queries. Attributes: mrr: of the reciprocal rank of the first tool that is right; missed: had none."""

    recall5: float
    recall15: float
    mrr: float
    missed: int


def queries_of(path: Path) -> list[Query]:
    """Return the queries in a file."""
    kinds = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Query(each["query"], kind, frozenset(each["relevant"])) for kind, listed in kinds.items() for each in listed
    ]


def bm25(tools: Iterable[Tool]) -> Ranking:
    """Rank as `tool_search` does."""
    index = SearchIndex(tools)
    return lambda query: [hit.tool for hit in index.search(query, SHOWN)[0]]


def substring(tools: Iterable[Tool]) -> Ranking:
    """Rank by substrings.

    100 for the exact name, 50 for a name that contains the query, else 10 for each word of the query that the name or
    the description contains; tools that come to nothing are left out, equal ones sorted by name.
    """
    searched = [(tool, tool.name.lower(), tool.description.lower()) for tool in tools]

    def rank(query: str) -> list[Tool]:
        wanted = query.lower()
        found: list[tuple[int, str, Tool]] = []
        for tool, name, description in searched:
            if name == wanted:
                score = 100
            elif wanted in name:
                score = 50
            else:
                score = 10 * sum(word in name or word in description for word in wanted.split())
            if score:
                found.append((-score, tool.name, tool))
        return [tool for *_, tool in sorted(found, key=itemgetter(0, 1))[:SHOWN]]

    return rank


def recall(ranked: Sequence[str], relevant: Collection[str], most: int) -> float:
    """Return the share of the relevant tools that are among the first so many."""
    return len(set(ranked[:most]) & set(relevant)) / len(relevant)


def reciprocal_rank(ranked: Sequence[str], relevant: Collection[str]) -> float:
    """Return 1 over the place of the first relevant tool; 0 if there is none."""
    return next((1 / place for place, name in enumerate(ranked, 1) if name in relevant), 0.0)


def quality(asked: Sequence[tuple[Sequence[str], Collection[str]]]) -> Quality:
    """Return the means over pairs of what was ranked and what is relevant."""
    ranks = [reciprocal_rank(*each) for each in asked]
    return Quality(
        recall5=statistics.fmean(recall(*each, 5) for each in asked),
        recall15=statistics.fmean(recall(*each, SHOWN) for each in asked),
        mrr=statistics.fmean(ranks),
        missed=ranks.count(0.0),
    )
