"""Memory that a response takes which is far larger than anybody wants; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from support.bombs import MIB, bomb
from support.mcp_servers import LegacyHttp, serving
from support.processes import PATIENCE, python
from support.vendor_server import Answer, vendor_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and counts memory in KiB"),
]

SUPPORT = Path(__file__).parents[1] / "support"
SENT = 700
"""MiB after decompression; less than 1 MB on the wire."""


def measured(*arguments: str) -> dict[str, Any]:
    """Return what a process of its own reports."""
    command = python(str(SUPPORT / "bomb_client.py"), *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def check(report: dict[str, Any], limit: int) -> None:
    """Check the error, the peak of memory above the start, and that the memory is free again."""
    assert report["type"] == "response_too_large", report
    assert report["peak"] - report["before"] <= 8 * limit, report
    assert report["after"] - report["before"] <= 2 * limit, report


def test_a_listing() -> None:
    """It is refused at 16 MiB."""
    server = LegacyHttp()
    packed = bomb(SENT)
    headers = {"content-encoding": "gzip"}
    server.refusals["tools/list"] = lambda _: Response(packed, media_type="application/json", headers=headers)
    with serving(lambda: server.app) as port:
        check(measured("mcp", f"http://127.0.0.1:{port}/mcp"), 16 * MIB)


def test_an_answer_of_a_model() -> None:
    """It is refused at 32 MiB."""
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    with vendor_server() as server:
        server.always(Answer(headers=headers, body=[bomb(SENT)]))
        check(measured("model", server.url), 32 * MIB)


def test_a_line_of_a_process() -> None:
    """It is refused at 32 MiB."""
    flood = python(str(SUPPORT / "flooding_server.py"), "tools/list", "line", str(SENT * MIB))
    check(measured("stdio", *flood), 32 * MIB)
