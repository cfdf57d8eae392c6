"""Stands for a process that a fork server runs: same streams, signals and exit status. It imports next to nothing."""

import json
import os
import signal
import socket
import sys

HEAD = 4


def main(path: str, arguments: list[str]) -> None:
    """Have the server at `path` run a script, and end as it does."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
    body = json.dumps(request).encode("utf-8", "surrogateescape")
    waiting, sent = os.pipe()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(body).to_bytes(HEAD, "big")], [0, 1, 2, waiting])
        server.sendall(body)
        os.close(sent)
        os.close(waiting)
        pid = int.from_bytes(server.recv(HEAD, socket.MSG_WAITALL), "big")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: os.kill(pid, number))
        for stream in (0, 1, 2):
            os.close(stream)  # whoever reads them waits for the script to end, not for this
        status = int.from_bytes(server.recv(HEAD, socket.MSG_WAITALL), "big", signed=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main(sys.argv[1], sys.argv[2:])
