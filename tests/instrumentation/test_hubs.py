"""Instrumentation of hubs: their names, and the changes to the MCP SDK that `instrument` makes and undoes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from threading import Barrier
from typing import Any

import mcp.client.stdio
import mcp.client.streamable_http
import pytest
from mcp import ClientSession

from pellucid.errors import ConfigError
from pellucid_instrumentation import Endpoint, ObservedHub, instrument, uninstrument
from pellucid_instrumentation.hubs import chooser_of
from support.processes import PATIENCE, run_python

URL = "https://ann:secret@mcp.example.com/mcp/?key=secret#secret"


@pytest.mark.parametrize(
    ("url", "id_"),
    [
        (URL, "mcp.example.com/mcp"),
        ("https://mcp.example.com:443/mcp", "mcp.example.com/mcp"),
        ("http://127.0.0.1:8000/mcp", "127.0.0.1:8000/mcp"),
        ("https://mcp.example.com/s/9f2c41aa7be04d1c9f2c41aa/mcp", "mcp.example.com/s/*/mcp"),
        ("https://mcp.example.com/s/NTk2YjE0ZmQtYjE0ZC00==/mcp", "mcp.example.com/s/*/mcp"),
        ("https://mcp.example.com/mcp;token=abc", "mcp.example.com/*"),
        ("https://mcp.example.com/@modelcontextprotocol/mcp", "mcp.example.com/@modelcontextprotocol/mcp"),
        ("http://[::1]:8000/mcp", "[::1]:8000/mcp"),
        ("http://[::1", "mcp.http"),
    ],
)
def test_a_url_names_a_hub_by_host_and_path(url: str, id_: str) -> None:
    """A URL names a hub by host and path, without user, query, and parts of the path that look like tokens."""
    assert Endpoint(kind="mcp.http", url=url).default_id == id_


def test_a_name_with_brackets_is_its_own_pattern() -> None:
    """Brackets in a hub's name, as in an address of IPv6, match themselves and are no set of characters."""
    choose = chooser_of({"[::1]:8000/mcp": "six", "[*]:8000/*": "no"})
    assert choose(Endpoint(kind="mcp.http", url="http://[::1]:8000/mcp")).id == "six"


@pytest.mark.parametrize(
    ("command", "id_"),
    [
        ("uvx mcp-server-time --local-timezone=UTC", "mcp-server-time"),
        ("uvx --from mcp-server-time==1.2 server secret", "mcp-server-time"),
        ("uv tool run mcp-server-git@1.2 --repository secret", "mcp-server-git"),
        ("/usr/bin/python3.12 -u -m mcp_server_time secret", "mcp_server_time"),
        ("python /srv/secret/server.py --token secret", "python server.py"),
        ("python -c secret", "python"),
        ("npx -y @scope/server@1.2.3 secret", "@scope/server"),
        ("npx --token secret @scope/server", "npx"),
        ("docker run -i --rm -e TOKEN=secret ghcr.io/owner/server:1", "ghcr.io/owner/server:1"),
        (r"C:\tools\node.exe C:\secret\index.js", "node index.js"),
        ("/opt/server --token secret", "server"),
        ("uvx https://ann:secret@example.com/x", "uvx"),
        ("uv --directory /srv/secret run weather.py", "uv weather.py"),
        ("docker exec -i secret", "docker"),
        ("pnpm start secret", "pnpm"),
    ],
)
def test_a_command_names_a_hub_by_program_and_package(command: str, id_: str) -> None:
    """A command names a hub by program and package, and never by another argument."""
    endpoint = Endpoint(kind="mcp.stdio", command=tuple(command.split(" ")))
    assert endpoint.default_id == id_
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize(
    "hubs",
    [{"*": 0}, {"*": None, "x": True}, {"*": ObservedHub("a"), "x": ""}, {"x": [1]}],
    ids=["0", "bool", "empty", "list"],
)
def test_a_hub_that_is_none_is_refused(hubs: Any) -> None:
    """A wrong hub raises ConfigError at once, and nothing is instrumented."""
    with pytest.raises(ConfigError):
        instrument(hubs=hubs)
    assert "send_request" in vars(ClientSession)
    assert not hasattr(ClientSession.send_request, "__wrapped__")


@pytest.mark.parametrize("text", ["x", "[1]", '{"*": {"name": "x"}}'])
def test_a_variable_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A wrong value of `PELLUCID_HUBS` raises ConfigError that names the variable."""
    monkeypatch.setenv("PELLUCID_HUBS", text)
    with pytest.raises(ConfigError, match="PELLUCID_HUBS"):
        instrument()


def test_uninstrument_leaves_no_wrapper() -> None:
    """`uninstrument` leaves the class and the functions of transports as they were, also after a second call."""

    def state() -> Any:
        functions: Any = (mcp.client.stdio.stdio_client, mcp.client.streamable_http.streamable_http_client)
        return dict(vars(ClientSession)), [function.__closure__[0].cell_contents for function in functions]

    before = state()
    for _ in range(2):
        instrument()
        assert state() != before
        uninstrument()
        assert state() == before


def test_a_further_call_replaces_the_hubs(caplog: pytest.LogCaptureFixture) -> None:
    """A second call of `instrument` replaces the hubs, and wraps nothing twice."""
    instrument({"*": 1})
    once: Any = ClientSession.send_request
    instrument({"*": 2})
    twice: Any = ClientSession.send_request
    uninstrument()
    assert twice.__wrapped__ is once.__wrapped__
    assert caplog.messages == []


def test_threads_that_instrument_at_the_same_time() -> None:
    """Threads that instrument at the same time wrap nothing twice."""
    barrier, interval = Barrier(8), sys.getswitchinterval()

    def together() -> None:
        barrier.wait(PATIENCE)
        instrument()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(together) for _ in range(8)]:
                future.result()
    finally:
        sys.setswitchinterval(interval)
    once: Any = ClientSession.send_request
    uninstrument()
    assert once.__wrapped__ is ClientSession.send_request


def test_before_the_sdk_is_imported() -> None:
    """An SDK that is imported after `instrument` is instrumented, and `uninstrument` restores it."""
    script = dedent("""
        import sys

        from pellucid_instrumentation import instrument, uninstrument

        instrument(hubs={"*": 0.5})
        assert "mcp" not in sys.modules
        from mcp import ClientSession

        assert hasattr(ClientSession.send_request, "__wrapped__")
        uninstrument()
        assert not hasattr(ClientSession.send_request, "__wrapped__")
    """)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=PATIENCE)


def test_as_an_entry_point_finds_it() -> None:
    """`opentelemetry-instrument` finds the instrumentation, which reads the variable."""
    run_python(
        """
        from pellucid_instrumentation.instrumentor import PellucidInstrumentor

        PellucidInstrumentor().instrument(skip_dep_check=True)
        from mcp import ClientSession

        assert hasattr(ClientSession.send_request, "__wrapped__")
        """,
        PELLUCID_HUBS='{"mcp.example.com/*": {"id": "search", "objective": 0.5}, "*": 1}',
    )
