"""Pictures of all pages of `pellucid view`, at three widths, light and dark, for `docs/viewer-pages.md`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from playwright.sync_api import Browser, Page, ViewportSize

from pellucid import Identity, semconv
from pellucid_exporters import StoreReader
from support.local_store import storing
from support.pages import ROOT
from support.view_scene import history, tell
from support.view_server import serving

FOLDER: Final = ROOT / "docs" / "images" / "pages"
PAGE: Final = ROOT / "docs" / "viewer-pages.md"
SIZES: Final = {1440: 900, 1920: 1080, 390: 844}
SCHEMES: Final = ("light", "dark")
RUNS: Final = 400
QUALITY: Final = 60

_HEAD: Final = """# Pages of the viewer

Every page of [`pellucid view`](viewer.md) with recorded runs, at 1440, 1920 and 390 pixels, light
and dark: made by `make pictures`.
"""


def record_scene(folder: Path) -> Path:
    """Record the runs of the pictures, and return their store."""
    store = folder / "telemetry.db"
    with storing(store) as telemetry:
        history(telemetry, RUNS)
        for tenant, user in (("north", "ann"), ("north", "bob"), ("south", "eve")):
            anyio.run(partial(tell, telemetry, identity=Identity(principal=user, tenant=tenant)))
    return store


def photograph_pages(browser: Browser, store: Path) -> None:
    """Make the pictures of all pages, and the page of the documentation that has them."""
    FOLDER.mkdir(exist_ok=True)
    pages = _pages(StoreReader(store))
    with serving(store) as url:
        for width, height in SIZES.items():
            for scheme in SCHEMES:
                page = browser.new_page(viewport=ViewportSize(width=width, height=height), color_scheme=scheme)
                for name, path in pages.items():
                    page.goto(f"{url}{path}")
                    (FOLDER / _file(name, width, scheme)).write_bytes(_picture(page))
                page.close()
    PAGE.write_text(gallery(pages))
    print(f"{len(pages)} pages, {sum(file.stat().st_size for file in FOLDER.iterdir()) // 1024} KiB")


def _pages(store: StoreReader) -> Mapping[str, str]:
    """Return the addresses of all pages, by their names."""
    latest, other = store.runs(agent="support", limit=2)
    chats = [span.sequence for span in store.spans(latest.run_id) if span.phase == semconv.INFERENCE]
    return {
        "Hubs": "/?window=24h",
        "A hub": "/hub?id=search&window=24h",
        "Runs": "/runs",
        "A run": f"/runs/{latest.run_id}/",
        "A span beside its run": f"/runs/{latest.run_id}/?span={chats[1]}",
        "A model call": f"/runs/{latest.run_id}/{chats[1]}",
        "Two runs": f"/compare?run={latest.run_id}&run={other.run_id}",
        "Users": "/users",
        "Tenants": "/tenants",
        "Tools": "/tools",
        "Models": "/models",
        "Trends": "/trends?range=24h",
        "Alerts": "/alerts",
    }


def gallery(pages: Iterable[str]) -> str:
    """Return the page of the documentation."""
    parts = [_HEAD]
    for name in pages:
        others = [
            f"[{width} {scheme}](images/pages/{_file(name, width, scheme)})"
            for width in SIZES
            for scheme in SCHEMES
            if (width, scheme) != (1440, "light")
        ]
        parts.append(f"## {name}\n\n![{name}](images/pages/{_file(name, 1440, 'light')})\n\n{' · '.join(others)}\n")
    return "\n".join(parts)


def _file(name: str, width: int, scheme: str) -> str:
    return f"{name.lower().replace(' ', '-')}-{width}-{scheme}.webp"


def _picture(page: Page) -> bytes:
    """Return a picture in WebP, which only the protocol of Chromium makes."""
    session = page.context.new_cdp_session(page)
    found = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    session.detach()
    return base64.b64decode(found["data"])
