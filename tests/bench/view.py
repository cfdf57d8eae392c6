"""Costs of the pages of `pellucid view`: the start, memory, the extra, pages at 10,000 runs, a run of 5,001 spans.

`make bench WHAT=view` prints a table. It needs Chromium for the last rows.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import anyio
from playwright.sync_api import Browser, sync_playwright

from bench.processes import peak
from pellucid_exporters import StoreReader
from support.local_store import storing
from support.processes import PATIENCE
from support.view_scene import crawl, history, shop

VIEW: Final = "import sys; from pellucid.cli import main; sys.exit(main())"
EXTRA: Final = ("click", "h11", "Jinja2", "markdown-it-py", "MarkupSafe", "mdurl", "starlette", "uvicorn")
"""Packages that the extra brings; anyio and typing-extensions are there already."""
TIMES: Final = 7
MEBIBYTE: Final = 1024 * 1024


@contextmanager
def viewing(path: Path) -> Iterator[tuple[str, int]]:
    """Run `pellucid view`; give its address and the id of its process."""
    command = [sys.executable, "-c", VIEW, "view", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().partition(" at ")[2].split()[0], process.pid
        process.terminate()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    number = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        write(path, number)
        row("figure", "value", "limit")
        starts(path)
        row("size of the extra", f"{extra() / 1e6:.1f} MB", "6 MB")
        pages(path, number)
        in_chromium(path)


def write(path: Path, number: int) -> None:
    """Write runs of a day, three of real agents, and one of 5,001 spans with a long conversation."""
    with storing(path) as telemetry:
        history(telemetry, number)
        anyio.run(shop, telemetry)
        anyio.run(crawl, telemetry)
        assert telemetry.flush(PATIENCE)


def starts(path: Path) -> None:
    """Measure from the command to the list of runs, and the memory of the process."""
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        with viewing(path) as (url, process):
            fetch(f"{url}runs")
            taken.append(time.perf_counter() - began)
            memory = peak(process)
    row("from the command to the list", f"{statistics.median(taken):.2f} s", "1 s")
    row("memory then", f"{memory / MEBIBYTE:.0f} MiB", "60 MB")


def pages(path: Path, number: int) -> None:
    """Measure each page over the store, and the memory after all of them."""
    newest = StoreReader(path).runs(agent="support", limit=2)
    run = f"runs/{newest[0].run_id}/"
    compared = f"compare?run={newest[0].run_id}&run={newest[1].run_id}"
    with viewing(path) as (url, process):
        for page in (
            "",
            "?window=24h",
            "?window=7d",
            "hub?id=search&window=24h",
            "runs",
            "runs?agent=billing&hub=search",
            "runs?outcome=failed",
            "runs?min_duration=3600",
            "runs?text=overloaded",
            "runs?text=said+nowhere",
            "alerts",
            run,
            f"{run}4",
            compared,
        ):
            name = page.replace(newest[0].run_id, "ID").replace(newest[1].run_id, "ID")
            seconds = timed(partial(fetch, f"{url}{page}"))
            row(f"/{name} of {number:,} runs", f"{seconds * 1000:.0f} ms", "200 ms")
        long = f"runs/{long_run(path)}/"
        for name, state in (("", "?open=all"), (" and a span", "?span=2500")):
            taken = timed(partial(fetch, f"{url}{long}{state}"))
            row(f"/runs/ID/ with 5,001 spans{name}: server", f"{taken * 1000:.0f} ms", "1.5 s")
            row(f"/runs/ID/ with 5,001 spans{name}: size", f"{fetch(url + long + state) / 1e3:.0f} kB", "600 kB")
        row("memory after all pages", f"{peak(process) / MEBIBYTE:.0f} MiB", "60 MB")


def in_chromium(path: Path) -> None:
    """Measure a run of 5,001 spans from the click until its first rows and messages are there."""
    program = shutil.which("chromium")
    if program is None:
        row("/runs/ID/ with 5,001 spans: Chromium", "not installed", "1.5 s")
        return
    with viewing(path) as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, state in (("closed", ""), ("open", "?open=all")):
            seconds = statistics.median(
                rows_shown(browser, f"{url}runs/{long_run(path)}/{state}") for _ in range(TIMES)
            )
            row(f"/runs/ID/ with 5,001 spans: Chromium, iterations {name}", f"{seconds * 1000:.0f} ms", "1.5 s")
        browser.close()


def long_run(path: Path) -> str:
    """Return the id of the run of 5,001 spans."""
    return StoreReader(path).runs(agent="crawler", limit=1)[0].run_id


def rows_shown(browser: Browser, url: str) -> float:
    """Return the seconds from a new page to the frame after its load, with its window of rows in it."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    began = time.perf_counter()
    page.goto(url)
    number = page.evaluate(
        "new Promise(done => requestAnimationFrame(() => setTimeout("
        "() => done(document.querySelectorAll('a.r, a.g').length))))"
    )
    taken = time.perf_counter() - began
    page.close()
    assert number >= 150, number  # a window of rows
    return taken


def timed(work: Callable[[], object]) -> float:
    """Return the median of some times in seconds."""
    taken = []
    for _ in range(TIMES):
        gc.collect()
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def fetch(url: str) -> int:
    """Return the number of bytes of a page."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return len(answer.read())


def extra() -> int:
    """Return the bytes of the files that the extra brings, without compiled ones."""
    files = [file for name in EXTRA for file in distribution(name).files or ()]
    return sum(Path(str(file.locate())).stat().st_size for file in files if file.suffix != ".pyc")


def row(figure: str, value: str, limit: str) -> None:
    """Print a row of the table."""
    print(f"{figure:<62} {value:>14}  {limit:>8}", flush=True)


if __name__ == "__main__":
    main()
