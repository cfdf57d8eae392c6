"""The server that forks the processes of tests."""

from __future__ import annotations

import marshal
import os
import socket
import sys
from typing import TYPE_CHECKING, Final

import pytest

from support.fork_server import HEAD
from support.processes import command, run_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scripts are forked on Linux only")

SLEEP: Final = "import time; time.sleep(1000)"


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_client_that_is_killed_early(part: float, tmp_path: Path) -> None:
    """Its script ends however much of the request was sent, and the next one runs."""
    *_, address, option, script = command(SLEEP)
    request = {"arguments": [option, script], "environment": dict(os.environ), "folder": str(tmp_path)}
    body = marshal.dumps(request)
    read, write = os.pipe()
    waiting, sent = os.pipe()
    os.close(sent)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        if part:
            socket.send_fds(client, [len(body).to_bytes(HEAD, "big")], [write, write, write, waiting])
            client.sendall(body[: int(len(body) * part)])
    for end in (write, waiting):
        os.close(end)
    with os.fdopen(read, "rb") as output:
        assert output.read() == b""  # ends when nobody has the other end
    assert run_python("print('well')").stdout == "well\n"
