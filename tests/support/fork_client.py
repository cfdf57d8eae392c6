"""Stands for a process that a fork server runs: same streams, signals and exit status.

It imports nothing but modules in C: `socket`, `signal` and `json` would take longer than all that it does.
"""

import _signal  # type: ignore[import-not-found]  # typeshed does not know it
import _socket
import marshal
import os
import sys

HEAD = 4


def main(path: str, arguments: list[str]) -> None:
    """Have the server at `path` run a script, and end as it does."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
    body = marshal.dumps(request)
    waiting, sent = os.pipe()
    streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2, waiting))
    server = _socket.socket(_socket.AF_UNIX)
    server.connect(path)
    head = len(body).to_bytes(HEAD, "big")
    server.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    server.sendall(body)
    os.close(sent)
    os.close(waiting)
    pid = int.from_bytes(server.recv(HEAD, _socket.MSG_WAITALL), "big")
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda number, _frame: os.kill(pid, number))
    for stream in (0, 1, 2):
        os.close(stream)  # whoever reads them waits for the script to end, not for this
    status = int.from_bytes(server.recv(HEAD, _socket.MSG_WAITALL), "big", signed=True)
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main(sys.argv[1], sys.argv[2:])
