"""The page of `docs/applications.md` in Chromium: text and typed answers are shown as they arrive."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from pellucid import ModelDelta, ToolCall, tool
from pellucid.testing import FunctionModel
from support.chromium import chromium
from support.pages import BLOCK, ROOT
from support.view_server import serving_app

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("quiet_opentelemetry")]

_, _, SECTION = (ROOT / "docs" / "applications.md").read_text().partition("\n## A page that streams\n")
ANSWERS, PAGE, TOWNS, FOLLOW = [block["code"] for block in BLOCK.finditer(SECTION)][:4]


@tool
def forecast() -> str:
    """Return the forecast."""
    return "rain"


class Model:
    """A model that gives each part of its answers when the test asks for it."""

    def __init__(self, *answers: list[str | ToolCall | Exception]) -> None:
        self._answers = list(answers)
        self._permits = threading.Semaphore(0)

    def go_on(self) -> None:
        """Let the next part follow."""
        self._permits.release()

    async def answer(self, _request: object) -> AsyncIterator[ModelDelta | ToolCall | str]:
        """Stream an answer. An error among its parts is raised."""
        answer = self._answers.pop(0)
        for part in answer:
            if isinstance(part, Exception):
                await self._permitted()
                raise part
            if isinstance(part, str):
                await self._permitted()
                yield ModelDelta("text", part)
        last = answer[-1]
        yield last if isinstance(last, ToolCall) else "".join(map(str, answer))

    async def _permitted(self) -> None:
        await anyio.to_thread.run_sync(self._permits.acquire, abandon_on_cancel=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser. Its thread has a running event loop until the tests of this module end."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Page]]:
    """Return a function that opens an address, where `page.html` is the page of the documentation."""
    (tmp_path / "page.html").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    pages: list[Page] = []

    def open_page(url: str) -> Page:
        pages.append(page := browser.new_page())
        page.goto(url)
        return page

    yield open_page
    for page in pages:
        page.close()


@contextmanager
def serving(code: str, model: Model, **options: Any) -> Iterator[str]:
    """Serve the application of a block, whose agent gets another model, and give its address."""
    names: dict[str, Any] = {}
    exec(compile(code, "docs/applications.md", "exec"), names)
    override = names["agent"].override(model=FunctionModel(model.answer), **options)
    with override, serving_app(names["app"]) as address:
        yield address


def ask(page: Page) -> Locator:
    """Submit a question; return the place of its answer."""
    page.get_by_label("Question").fill("Will it rain?")
    page.get_by_role("button").click()
    return page.locator("#answer")


def test_text_appears_as_it_arrives(open_page: Callable[[str], Page]) -> None:
    """Each piece is added at once, and an answer after a tool call takes the place of the text before it."""
    model = Model(["I look.", ToolCall("forecast", {})], ["Take ", "an <b>umbrella</b>."])
    with serving(ANSWERS, model, tools=[forecast]) as url:
        answer = ask(page := open_page(url))
        for shown in ("I look.", "Take ", "Take an <b>umbrella</b>."):
            model.go_on()
            expect(answer).to_have_text(shown)
        page.wait_for_function("source.readyState === EventSource.CLOSED")
        expect(answer).to_have_text("Take an <b>umbrella</b>.")


def test_a_failure_is_shown_without_its_reason(open_page: Callable[[str], Page]) -> None:
    """The text so far gives way to what an end user may read about a failed run."""
    model = Model(["Take ", RuntimeError("a secret of the vendor")])
    with serving(ANSWERS, model) as url:
        answer = ask(open_page(url))
        model.go_on()
        expect(answer).to_have_text("Take ")
        model.go_on()
        expect(answer).to_have_text("the run has failed")


def test_typed_values_arrive_while_they_grow(open_page: Callable[[str], Page]) -> None:
    """Each line is the value so far, as JSON; a run that fails throws where the response is read."""
    oslo = '{"name": "Oslo", "people": 729000}'
    model = Model(
        ['{"result": [', oslo, ', {"name": "Bergen", "people": 296000}', "]}"],
        ['{"result": [', oslo, RuntimeError("a secret of the vendor")],
    )
    with serving(TOWNS, model) as url:
        page = open_page(f"{url}/none")  # scripts of this origin
        page.add_script_tag(content=FOLLOW)
        for ends in ("completed", "failed"):
            page.evaluate(
                """() => {
                  const [counts, ended] = [[], []];
                  Object.assign(window, { counts, ended });
                  follow("Towns?", (towns) => counts.push(towns.length))
                    .then(() => ended.push("completed"), () => ended.push("failed"));
                }"""
            )
            for count in (0, 1):
                model.go_on()
                page.wait_for_function(f"counts.at(-1) === {count}")
            model.go_on()
            model.go_on()
            page.wait_for_function("ended.length")
            assert page.evaluate("ended") == [ends]
        assert page.evaluate("counts") == [0, 1]
