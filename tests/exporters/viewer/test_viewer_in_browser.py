"""The pages of the viewer in Chromium: keys, live pages, hostile content, accessibility, small screens."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import anyio.from_thread
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from pellucid import Agent
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import Telemetry
from support.chromium import chromium
from support.local_store import eventually, storing
from support.many_runs import write_runs
from support.processes import PATIENCE
from support.view_scene import HOSTILE, hang, hostile, shop, tell, thousands
from support.view_server import serving

pytestmark = pytest.mark.browser

WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective + event.blockedURI));
"""
LABELS = """
[...document.querySelectorAll(".chart.labels")].map((labels) => labels.getBoundingClientRect())
  .every((place) => place.width > 40 && place.left >= 0 && place.right < 100)
"""
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser. Its thread has a running event loop until the tests of this module end."""
    with chromium() as browser:
        yield browser


def run_in_thread(function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Run an async function beside the event loop of the browser."""
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(function, *arguments)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Telemetry]]:
    """Return the address of the pages of a store, and the telemetry that writes to it."""
    path = tmp_path_factory.mktemp("browser") / "store.db"
    with storing(path) as telemetry:
        thousands(telemetry)
        hostile(telemetry)
        run_in_thread(shop, telemetry)
        assert telemetry.flush(PATIENCE)
        with serving(path) as url:
            yield url, telemetry


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page; no page may reach out, run foreign script, or complain."""
    requests: list[str] = []
    complaints: list[str] = []
    pages: list[Page] = []

    def open_page(url: str, **options: Any) -> Page:
        page = browser.new_page(**options)
        page.set_default_timeout(PATIENCE * 1000)
        page.add_init_script(WATCH)
        page.on("request", lambda request: requests.append(request.url))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        pages.append(page)
        page.goto(url)
        return page

    yield open_page
    for page in pages:
        complaints += page.evaluate("violations")
        page.close()
    assert complaints == []
    assert {urlsplit(url).hostname for url in requests} == {"127.0.0.1"}


def every_path(page: Page, url: str) -> list[str]:
    """Return one path of each kind, of the run that failed."""
    page.goto(f"{url}/runs?outcome=failed")
    run = page.locator("a.row").first.get_attribute("href")
    page.goto(f"{url}/runs?outcome=completed&agent=support")
    completed = page.locator("a.row").first.get_attribute("href")
    assert run is not None
    assert completed is not None
    compared = f"/compare?run={run.split('/')[2]}&run={completed.split('/')[2]}"
    pages = ["/", "/hub?id=help-centre", "/runs", "/runs?text=nothing", "/alerts", run, compared]
    other = f"/runs/{'6' * 32}/"
    pages += ["/runs?text=scarf&faulty=1&range=1h", "/users", "/users?id=ann", "/conversations", "/tools", "/models"]
    pages += [f"/{kind}?{urlencode({'id': HOSTILE})}" for kind in ("tools", "models", "hub")]
    pages += [
        "/trends",
        f"/trends?{urlencode({'by': 'tool', 'name': HOSTILE})}",
        f"/runs?{urlencode({'agent': HOSTILE})}",
    ]
    pages += [other, *(f"{other}{number}" for number in range(4))]
    states = ("side=calls", "side=events", "side=configuration", "span=2", "span=3")
    pages += [f"{some}?{state}" for some in (run, other) for state in states]
    pages += [f"/compare?run={run.split('/')[2]}&run={'6' * 32}"]
    return [*pages, f"/runs/{'5' * 32}/", *(f"{run}{number}" for number in (0, 1, 3, 10))]


MARKED = """
(kind) => [...(CSS.highlights.get("code-" + kind) || [])].map(
  (range) => range.startContainer.data.slice(range.startOffset, range.endOffset))
"""


async def code(path: Path) -> None:
    """Write a run with code of three languages, and one that is not known, of which one text never ends."""
    answer = "```python\nif x < 10:  # small\n    say('no if')\n```\n\n```SQL\nselect 'it' from t -- if\n```\n\n"
    answer += "```sonnet\nif 14\n```\n\n```js\n/* never\nends"
    with storing(path) as telemetry:
        model = ScriptedModel(answer)
        await Agent("coder", model=model, telemetry=telemetry).run("How?")


def test_code_is_highlighted(open_page: Callable[..., Page], tmp_path: Path) -> None:
    """By its language, in messages and beside the waterfall, without a new element; also in a part that is loaded."""
    run_in_thread(code, tmp_path / "store.db")
    with serving(tmp_path / "store.db") as url:
        page = open_page(f"{url}/runs")
        page.locator("a.row").click()
        page.wait_for_url("**/runs/*/")
        assert page.evaluate(MARKED, "keyword") == ["if", "select", "from"]
        assert page.evaluate(MARKED, "comment") == ["# small", "-- if", "/* never\nends"]
        assert page.evaluate(MARKED, "string") == ["'no if'", "'it'"]
        assert page.evaluate(MARKED, "number") == ["10"]
        style = "getComputedStyle(document.querySelector('pre.code'), '::highlight(code-keyword)').color"
        assert page.evaluate(style) != page.evaluate("getComputedStyle(document.querySelector('pre.code')).color")
        page.locator("a.r", has_text="compose").first.click()
        eventually(lambda: not page.evaluate(MARKED, "number"))
        page.locator("a.r", has_text="chat").last.click()
        eventually(lambda: page.evaluate(MARKED, "number") == ["10"])
        page.goto("about:blank")  # it asks the server for changes, which ends first


def test_a_stranger_finds_slow_hub_prompt_and_reason(
    open_page: Callable[..., Page], written: tuple[str, Telemetry]
) -> None:
    """With keys alone: the slow hub comes first, a failed run says why, its second model call has the prompt."""
    url, _ = written
    page = open_page(url)
    page.keyboard.press("j")
    focused = page.locator(":focus")
    expect(focused).to_have_text("help-centre")
    expect(page.locator("tbody tr").first).to_contain_text("slow")
    focused.press("Enter")
    page.wait_for_url("**/hub?id=help-centre**")
    page.keyboard.press("Escape")
    page.wait_for_url(f"{url}/?window=1h")
    page.keyboard.press("/")
    page.keyboard.type("overloaded")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?text=overloaded")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*/")
    expect(page.locator(".fault").first).to_contain_text("the vendor answered 529: overloaded")
    page.locator("a.r", has_text="chat gpt-6-luna").nth(1).press("Enter")
    page.wait_for_url("**/runs/*/?span=10&row=0")
    expect(page.locator(".side .messages").first).to_contain_text("can I have my money back?")
    page.keyboard.press("n")
    page.wait_for_url("**/runs/*/?span=11&row=0")
    expect(page.locator(".side h2")).to_contain_text("execute_tool track_parcel")
    page.keyboard.press("p")
    page.wait_for_url("**/runs/*/?span=10&row=0")
    page.go_back()
    page.wait_for_url("**/runs/*/?span=11&row=0")
    expect(page.locator(".side h2")).to_contain_text("execute_tool track_parcel")
    page.get_by_role("link", name="own page").press("Enter")
    page.wait_for_url("**/runs/*/11")
    expect(page.locator("h1")).to_contain_text("execute_tool track_parcel")
    page.keyboard.press("Escape")
    page.wait_for_url("**/runs/*/")


def test_a_run_changes_in_place(open_page: Callable[..., Page], written: tuple[str, Telemetry]) -> None:
    """Spans, iterations and a dragged range change the page without loading it anew; back undoes it; it prints."""
    url, _ = written
    page = open_page(f"{url}/runs/{'5' * 32}/")
    page.evaluate("window.isSame = true")
    assert page.locator("a.r").count() == 0
    page.get_by_role("link", name="Iteration 3 ", exact=False).first.click()
    page.wait_for_url("**/?fold=i3#i3")
    expect(page.locator("a.r")).to_have_count(10)
    page.locator("a.r").nth(4).click()
    expect(page.locator(".r.on")).to_have_count(1)
    expect(page.locator(".side h2")).to_contain_text("execute_tool fetch_page")
    page.keyboard.press("Escape")
    expect(page.locator(".r.on")).to_have_count(0)
    expect(page.locator("a.r")).to_have_count(10)
    box = page.locator(".map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 5)
    page.mouse.up()
    page.wait_for_url("**/?*from=*&to=*")
    expect(page.locator(".map .range")).to_have_count(1)
    assert page.locator("a.g").count() < 60
    page.go_back()
    expect(page.locator(".map .range")).to_have_count(0)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy curl").click()
    expect(page.get_by_role("button", name="copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == f"curl {url}/runs/{'5' * 32}/?format=json"
    assert page.evaluate("window.isSame")
    page.emulate_media(media="print")
    for selector in ("header.top", "footer", ".copy >> nth=0", ".side .pick"):
        expect(page.locator(selector)).to_be_hidden()
    expect(page.locator(".side .cut").first).to_be_visible()


def test_two_marked_runs_are_compared(open_page: Callable[..., Page], written: tuple[str, Telemetry]) -> None:
    """The button waits for two marks, which stay when the page refreshes itself."""
    url, telemetry = written
    page = open_page(f"{url}/runs?agent=support")
    button = page.get_by_role("button", name="Compare")
    expect(button).to_be_disabled()
    boxes = page.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    number = boxes.count()
    run_in_thread(tell, telemetry)
    expect(boxes).to_have_count(number + 1)
    expect(boxes.nth(0)).not_to_be_checked()
    button.click()
    expect(page.locator("h1")).to_have_text("Two runs compared")


def test_a_range_is_dragged_and_a_filter_kept(open_page: Callable[..., Page], written: tuple[str, Telemetry]) -> None:
    """Over the histogram; the browser keeps the filter under a name, whose markup stays text, until it is removed."""
    url, _ = written
    page = open_page(f"{url}/runs?agent=support")
    box = page.locator("svg.histogram").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.move(box["x"] + box["width"] - 2, middle)
    page.mouse.up()
    page.wait_for_url(re.compile(r"agent=support.*since=\d{19}&until=\d{19}"))
    expect(page.locator("a.row").first).to_be_visible()
    page.get_by_label("Name under which").fill("<b>support</b>")
    page.get_by_role("button", name="Save filter").click()
    page.goto(f"{url}/runs")
    page.get_by_role("link", name="<b>support</b>").click()
    page.wait_for_url(re.compile(r"agent=support.*since="))
    page.get_by_role("button", name="Remove the saved filter").click()
    expect(page.get_by_role("link", name="<b>support</b>")).to_have_count(0)


@pytest.fixture
def long_rows(tmp_path: Path) -> Iterator[str]:
    """Return the address of the pages of a store whose runs have long names; served until their page is closed."""
    path = tmp_path / "store.db"
    write_runs(path, 40)
    with closing(sqlite3.connect(path)) as connection:
        long = {name: f"{name} {'much too long ' * 30}" for name in ("question", "answer", "agent", "user", "tenant")}
        connection.execute(f"UPDATE runs SET {', '.join(f'{name} = :{name}' for name in long)}, faults = 12", long)
        connection.commit()
    with serving(path) as url:
        yield url


def test_rows_are_short(long_rows: str, open_page: Callable[..., Page]) -> None:
    """Thirty on a screen of 900 pixels whatever the names; on a phone two lines with state, question and duration."""
    page = open_page(f"{long_rows}/runs")
    rows = page.locator("tbody tr")
    page.set_viewport_size({"width": 1440, "height": 900})
    boxes = [box for box in map(Locator.bounding_box, rows.all()) if box is not None]
    assert sum(box["y"] + box["height"] <= 900 for box in boxes) >= 30
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    page.set_viewport_size({"width": 390, "height": 844})
    box = rows.first.bounding_box()
    assert box is not None
    assert box["height"] <= 50
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for shown in ("question", "answered", "took", "outcome", "when"):
        expect(rows.first.locator(f"td.{shown}")).to_be_visible()


def test_every_page(open_page: Callable[..., Page], written: tuple[str, Telemetry]) -> None:
    """Recorded content is never markup; axe-core finds nothing serious, light and dark; a small screen is enough."""
    url, _ = written
    page = open_page(f"{url}/runs")
    for path in every_path(page, url):
        page.set_viewport_size({"width": 1440, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(f"{url}{path}")
        assert page.locator("main script, main img, main iframe").count() == 0, path
        assert obstacles(page) == [], path
        page.emulate_media(color_scheme="dark")
        assert obstacles(page, runOnly=["color-contrast"]) == [], path
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        assert page.evaluate(LABELS), path
    page.goto(f"{url}{every_path(page, url)[-1]}")
    expect(page.locator(".messages").first).to_contain_text("<script>alert('run')</script><img src=x onerror=alert(1)>")


def obstacles(page: Page, **options: Any) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds serious: rules, and the elements that break them."""
    found = Axe().run(page, options=options).response["violations"]
    return [(item["id"], [node["html"] for node in item["nodes"]]) for item in found if item["impact"] in SERIOUS]


def test_a_hub_that_hangs_appears(open_page: Callable[..., Page], written: tuple[str, Telemetry]) -> None:
    """An open page shows a discovery in flight, and a run under way, without being loaded anew; both end there."""
    url, telemetry = written
    page = open_page(url)
    flight = page.locator(".flight")
    expect(flight).to_have_count(0)
    hub = FakeHub(latency=math.inf)
    with anyio.from_thread.start_blocking_portal() as portal:
        future = portal.start_task_soon(hang, telemetry, hub)
        expect(flight).to_contain_text("discover_tools search")
        expect(page.locator("tbody tr").first).to_contain_text("hangs")
        runs = open_page(f"{url}/runs?outcome=running")
        expect(runs.locator("tbody tr")).to_have_count(1)
        runs.locator("a.row").click()
        expect(runs.locator("h1")).to_contain_text("running")
        future.cancel()
        expect(flight).to_have_count(0)
        expect(runs.locator("h1")).to_contain_text("cancelled")
