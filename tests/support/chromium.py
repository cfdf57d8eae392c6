"""The Chromium of the system, driven by tests."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

expect.set_options(timeout=PATIENCE * 1000)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser within the context, in which this thread has a running event loop; skip without Chromium."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain("chromium is not installed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
