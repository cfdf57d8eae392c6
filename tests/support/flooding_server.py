"""A server of MCP over stdio that sends more than anybody wants, and says on standard error how far it got.

Arguments: the method to answer so, `line` or `pages`, and the size in bytes of the line or of each page.
"""

from __future__ import annotations

import json
import sys
from typing import Any

GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "flood", "version": "1"},
}
SCHEMA = {"type": "object", "properties": {}}


def answer(message: dict[str, Any], result: dict[str, Any]) -> None:
    """Answer a request."""
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


def flood(size: int) -> None:
    """Write a line without ever holding it."""
    piece = "x" * 65_536
    sys.stdout.write('{"jsonrpc": "2.0", "result": "')
    for _ in range(size // len(piece)):
        sys.stdout.write(piece)
    print('"}', flush=True)


def page(message: dict[str, Any], size: int) -> None:
    """Answer with a page of a list that does not end."""
    tool = {"name": "echo", "description": "x" * size, "inputSchema": SCHEMA}
    cursor = int((message.get("params") or {}).get("cursor") or 0)
    print(f"page {cursor}", file=sys.stderr, flush=True)
    answer(message, {"tools": [tool], "nextCursor": str(cursor + 1)})


def main(method: str, way: str, size: int) -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] == method and way == "line":
            flood(size)
        elif message["method"] == method:
            page(message, size)
        elif message["method"] == "initialize":
            answer(message, GREETING)
        elif message["method"] == "tools/list":
            answer(message, {"tools": [{"name": "echo", "inputSchema": SCHEMA}]})
        elif message["method"] == "tools/call":
            answer(message, {"content": [{"type": "text", "text": "y" * size}]})
        elif "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "?"}}))
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
