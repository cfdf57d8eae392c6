"""An MCP server over stdio that takes half a second to list its tools, which are those of mcp-server-time."""

from __future__ import annotations

import subprocess
import sys
import time

DELAY = 0.5

if __name__ == "__main__":
    server = subprocess.Popen([sys.executable, "-m", "mcp_server_time"], stdin=subprocess.PIPE)
    assert server.stdin is not None
    for line in sys.stdin.buffer:
        if b'"tools/list"' in line:
            time.sleep(DELAY)
        server.stdin.write(line)
        server.stdin.flush()
    server.stdin.close()
    server.wait()
