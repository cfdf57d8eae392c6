"""Ranking of `tool_search`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import Agent, Tool, ToolCall, ToolRegistry, ToolResult
from pellucid.testing import ScriptedModel
from pellucid.tools.search import SearchIndex
from support.runs import within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def made(name: str, description: str = "", *parameters: str, tags: tuple[str, ...] = ()) -> Tool:
    """Return a tool that does nothing."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
    return Tool(name=name, description=description, input_schema=schema, run=lambda arguments, ctx: "", tags=tags)


TOOLS = [
    made("create_issue", "Open an issue in a repository.", "title", "labels"),
    made("list_issues", "List the issues of a repository."),
    made("getWeatherForecast", "Say what the weather will be.", "city"),
    made("categorise", "Put a text into categories."),
    made("notify", "Tell somebody.", tags=("email", "slack")),
    made("convert", "Convert an amount.", "currency"),
]


async def ranked(query: str, tools: list[Tool]) -> list[str]:
    """Return the names that an agent's model gets for a query."""
    model = ScriptedModel(ToolCall("tool_search", {"query": query}), "done")
    registry = ToolRegistry(tools, registry_mode="lazy")
    result = await within(Agent("a", model=model, providers=[registry]).run("x"), 30)
    [part] = [part for part in result.messages[2].parts if isinstance(part, ToolResult)]
    response: Any = part.response
    return [each["name"] for each in response["results"]]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an issue", "create_issue"),
        ("creating issues", "create_issue"),
        ("the listing of issues", "list_issues"),
        ("weather", "getWeatherForecast"),
        ("forec", "getWeatherForecast"),
        ("getweatherforecast", "getWeatherForecast"),
        ("email", "notify"),
        ("currencies", "convert"),
        ("labels", "create_issue"),
    ],
)
async def test_what_is_meant_comes_first(query: str, best: str) -> None:
    """By name, description, tags and parameters; whatever form a word has, and if it is only begun."""
    assert (await ranked(query, TOOLS))[0] == best


async def test_words_are_found_not_parts_of_them() -> None:
    """`cat` is in no tool here, though `categorise` begins with it, once some tool knows the word."""
    tools = [*TOOLS, made("feed", "Feed the cat.")]
    assert await ranked("cat", tools) == ["feed"]


async def test_words_that_say_nothing_find_nothing() -> None:
    """A query of nothing else has no results."""
    assert await ranked("the of a", TOOLS) == []


async def test_a_name_that_is_typed_comes_first() -> None:
    """Even if other tools have more of its words."""
    tools = [made("list", "x"), made("list_list", "List lists of lists.", "list", tags=("list",))]
    assert await ranked("list", tools) == ["list", "list_list"]


async def test_many_tools_are_searched() -> None:
    """The index of so many is made in a worker thread."""
    tools = [made(f"read_{number}", f"Read file number {number}.") for number in range(600)]
    assert (await ranked("read file 417", tools))[0] == "read_417"


FOREIGN = [
    made("weather_jp", "指定された都市の天気予報を返します。"),
    made("weather_kr", "도시의 날씨를 조회합니다."),
    made("uebersetzen", "Übersetzt Texte in größere Sprachen."),
    made("menu", "Liste les plats du café.", "prénom"),
    made("pogoda", "Прогноз погоды."),
    made("getweather", "x"),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("天気", "weather_jp"),
        ("予報", "weather_jp"),
        ("東京の天気を教えて", "weather_jp"),
        ("날씨", "weather_kr"),
        ("größere", "uebersetzen"),
        ("GRÖSSERE", "uebersetzen"),
        ("übersetzt", "uebersetzen"),
        ("cafe", "menu"),
        ("CAFÉ", "menu"),
        ("cafe\u0301", "menu"),
        ("prenom", "menu"),
        ("ПОГОДЫ", "pogoda"),
        ("\uff57\uff45\uff41\uff54\uff48\uff45\uff52\u3000jp", "weather_jp"),
    ],
)
async def test_words_of_any_script_are_found(query: str, found: str) -> None:
    """Accents, widths and case make no difference; what is written without spaces is found by parts of it."""
    assert (await ranked(query, FOREIGN))[0] == found


@pytest.mark.parametrize("query", ["🎉", "\uff1f\uff01", "\u200b", "\ud800"])
async def test_a_query_without_words_finds_nothing(query: str) -> None:
    """And does no harm."""
    assert await ranked(query, FOREIGN) == []


async def test_words_run_together_are_found_where_nothing_else_is() -> None:
    """A part of a word counts if no word is it or begins with it."""
    assert await ranked("ather", FOREIGN) == ["getweather", "weather_kr", "weather_jp"]


@pytest.mark.parametrize("query", ["github", "GitHub", "GITHUB"])
@pytest.mark.parametrize("name", ["github_fetch", "GitHubFetch", "GITHUB_FETCH"])
async def test_a_product_is_found_in_whatever_case_it_is_written(query: str, name: str) -> None:
    """A name in mixed case is its parts, and one word too."""
    assert (await ranked(query, [made("hubspot_fetch"), made("gitlab_fetch"), made(name)]))[0] == name


async def test_names_that_differ_in_case_both_come_first() -> None:
    """Whoever types one of them means one of the two."""
    tools = [made("list_list", "List a list.", tags=("list",)), made("List", "x"), made("list", "y")]
    assert await ranked("list", tools) == ["List", "list", "list_list"]


words = st.text("abcdefg", min_size=1, max_size=4)


@given(st.lists(st.tuples(words, st.lists(words, max_size=6)), max_size=20), st.lists(words, max_size=4))
def test_a_ranking_depends_on_nothing_else(described: list[tuple[str, list[str]]], query: list[str]) -> None:
    """The order of registration changes nothing; scores fall, and equal ones are sorted by name."""
    tools = {name: made(name, " ".join(said)) for name, said in described}
    hits, total = SearchIndex(tools.values()).search(" ".join(query), 15)
    again, _ = SearchIndex(reversed(tools.values())).search(" ".join(query), 15)
    assert [(hit.tool.name, hit.score) for hit in hits] == [(hit.tool.name, hit.score) for hit in again]
    assert [(-hit.score, hit.tool.name) for hit in hits] == sorted((-hit.score, hit.tool.name) for hit in hits)
    assert len(hits) == min(total, 15)
