"""The pictures of the documentation, from recorded runs: `make pictures`. It needs Chromium, and takes two minutes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from documentation.diagrams import DIAGRAMS, draw
from documentation.page_pictures import photograph_pages, record_scene
from documentation.terminal import picture, record
from pellucid import semconv
from pellucid_exporters import StoreReader
from pellucid_exporters.local.options import DEFAULT_PATH
from support.pages import BLOCK, ROOT
from support.processes import PATIENCE
from support.view_server import serving

IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 92
"""Columns of the terminal."""
ROUNDS: Final = 12
"""Rounds of the demo: the alert of a slow hub needs 20 round trips."""


def main() -> None:
    """Make all pictures anew."""
    for name, diagram in DIAGRAMS.items():
        write(name, draw(diagram))
    with tempfile.TemporaryDirectory() as folder:
        support, demo = Path(folder, "support"), Path(folder, "demo")
        for made in (support, demo):
            made.mkdir()
        terminal(support, demo)
        store = record_scene(Path(folder))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
            photograph(browser, support, {"viewer-alerts.png": "/alerts"}, height=400)
            photograph(browser, demo, _pages_of_demo(demo), height=720)
            photograph_pages(browser, store)
            browser.close()


def write(name: str, drawn: str) -> None:
    """Write a picture, and say so."""
    (IMAGES / name).write_text(drawn)
    print(f"{name}  {len(drawn) // 1024} KiB")


def terminal(support: Path, demo: Path) -> None:
    """Draw the last run of the program in `docs/get-started.md`, and a run of the demo with its hubs."""
    page = (ROOT / "docs" / "get-started.md").read_text()
    program = next(block["code"] for block in BLOCK.finditer(page) if "objective=0.05, ttl=0" in block["code"])
    tree = record(["-c", program], folder=support, width=WIDTH)
    write("tree.svg", picture(_last(tree, "invoke_agent").partition("\n\n")[0], name="tree"))
    shown = record(["-m", "pellucid", "demo", "--port", "0"], folder=demo, width=WIDTH)
    run, rest = _last(shown, "invoke_agent").split("\n\n", 1)
    write("demo.svg", picture(run, name="demo"))
    table = next(part for part in rest.split("\n\n") if "round trips" in part)
    write("hubs.svg", picture(re.sub(r"^\S+Hubs\S*\n", "", table), name="hubs"))


def _last(output: str, word: str) -> str:
    """Return output from the start of the last line that has a word."""
    return output[output.rindex("\n", 0, output.rindex(word)) + 1 :]


def photograph(browser: Browser, folder: Path, paths: Mapping[str, str], *, height: int) -> None:
    """Photograph pages of `pellucid view` over the store of a folder."""
    with serving(folder / DEFAULT_PATH) as url:
        page = browser.new_page(viewport={"width": 1200, "height": height})
        for name, path in paths.items():
            page.goto(f"{url}{path}")
            page.screenshot(path=IMAGES / name)
            print(f"{name}  {(IMAGES / name).stat().st_size // 1024} KiB")


def _pages_of_demo(folder: Path) -> dict[str, str]:
    """Run the demo again and again, and return its pages."""
    _demonstrate(folder, ROUNDS)
    store = StoreReader(folder / DEFAULT_PATH)
    _refused, failed = store.runs(outcome="failed", limit=2)  # newest first: the refusal comes after the failure
    completed = store.runs(outcome="completed", limit=1)[0].run_id
    chats = [span.sequence for span in store.spans(completed) if span.phase == semconv.INFERENCE]
    return {
        "viewer-hubs.png": "/?window=15m",
        "viewer-runs.png": "/runs",
        "viewer-run.png": f"/runs/{failed.run_id}/",
        "viewer-request.png": f"/runs/{completed}/{chats[1]}",
    }


def _demonstrate(folder: Path, rounds: int) -> None:
    """Run the demo so many times in a folder."""
    command = [sys.executable, "-m", "pellucid", "demo", "--port", "0", "--repeat", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        answers = (line for line in demo.stdout if line == "Answer\n")
        for _ in range(rounds):
            next(answers)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE)


if __name__ == "__main__":
    main()
