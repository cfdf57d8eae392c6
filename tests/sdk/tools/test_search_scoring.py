"""The yardsticks of `bench.search_quality`, on a catalogue that one can count in the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ranking import bm25, quality, queries_of, recall, reciprocal_rank, substring
from pellucid import Tool


def made(name: str, description: str) -> Tool:
    """Return a tool that does nothing."""
    return Tool(name=name, description=description, run=lambda arguments, ctx: "")


TOOLS = [
    made("post_message", "Tell a channel something."),
    made("post", "Print a letter."),
    made("categorise", "Sort things."),
    made("list_channels", "List the channels."),
    made("archive", "Put away."),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("post", ["post", "post_message"]),  # 100 for the name, 50 for being in one
        ("POST_M", ["post_message"]),
        ("cat", ["categorise"]),  # parts of words count
        ("tell the channel", ["list_channels", "post_message"]),  # two words each, so by name
        ("letter of a channel", ["list_channels", "post", "post_message", "archive", "categorise"]),
        ("nothing", []),
        ("", ["archive", "categorise", "list_channels", "post", "post_message"]),  # every name contains it
    ],
)
def test_substrings_are_scored_as_they_were(query: str, names: list[str]) -> None:
    """By the exact name, the whole query in the name, and the number of words in either; ties by name."""
    assert [tool.name for tool in substring(TOOLS)(query)] == names


def test_six_words_outrank_a_name() -> None:
    """Words in a description add up to more than the query in a name; that is how it was."""
    tools = [made("xa b c d e fx", ""), made("z", "a b c d e f")]
    assert [tool.name for tool in substring(tools)("a b c d e f")] == ["z", "xa b c d e fx"]


def test_no_more_than_fifteen_are_shown() -> None:
    """By either ranking."""
    tools = [made(f"read_{number}", "Read.") for number in range(20)]
    assert len(substring(tools)("read")) == len(bm25(tools)("read")) == 15


def test_recall_is_the_share_of_what_is_relevant() -> None:
    """Among the first so many; what stands further down does not count."""
    assert recall(["a", "b", "c"], {"a", "c", "d", "e"}, 3) == 0.5
    assert recall(["a", "b", "c"], {"a", "c", "d", "e"}, 2) == 0.25
    assert recall([], {"a"}, 5) == 0


def test_the_first_relevant_tool_gives_the_rank() -> None:
    """1 for the first place, a third for the third, nothing for none."""
    assert reciprocal_rank(["a", "b"], {"a", "b"}) == 1
    assert reciprocal_rank(["x", "y", "a"], {"a"}) == pytest.approx(1 / 3)
    assert reciprocal_rank(["x"], {"a"}) == 0


def test_quality_is_the_mean_over_queries() -> None:
    """Each query counts the same, however many tools are relevant to it."""
    found = quality([(["a"], {"a"}), (["x", *"bcdef"], {"b", "f"}), (["x"], {"a"})])
    assert [found.recall5, found.recall15, found.mrr, found.missed] == pytest.approx([0.5, 2 / 3, 0.5, 1])


def test_queries_are_distinct_and_name_tools_of_servers(request: pytest.FixtureRequest) -> None:
    """At least 120, each with tools that are relevant to it, of three kinds."""
    asked = queries_of(Path(request.config.rootpath, "tests", "bench", "search_queries.toml"))
    assert len({query.text for query in asked}) == len(asked) >= 120
    assert {query.kind for query in asked} == {"plain", "reworded", "distant"}
    assert all(query.relevant and all("/" in name for name in query.relevant) for query in asked)
