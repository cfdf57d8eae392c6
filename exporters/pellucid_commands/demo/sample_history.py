"""MCP server with the history of a repository that does not exist, for a demo where there is no other.

Run as a script, it serves the tool `git_log` over stdio, with the text of `mcp-server-git`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp.server.mcpserver import MCPServer

COMMITS: Final = (
    ("Ada Sample", 2, "Retry the catalogue once it is back"),
    ("Grace Sample", 20, "Cache the catalogue for a minute"),
    ("Ada Sample", 45, "Name the hub that failed"),
    ("Alan Sample", 70, "Count words of the catalogue"),
    ("Grace Sample", 96, "Add the catalogue"),
)
"""Author, age in hours and subject of each commit, the latest first."""


def git_log(repo_path: str, max_count: int = 10) -> str:
    """Show the commit logs. These commits are invented: no repository is read.

    Args:
        repo_path: Ignored, as there is one repository.
        max_count: Maximum number of commits.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    entries = [
        f"Commit: {hashlib.sha256(subject.encode()).hexdigest()[:40]}\n"
        f"Author: {author}\n"
        f"Date: {now - timedelta(hours=age)}\n"
        f"Message: {subject}\n"
        for author, age, subject in COMMITS[:max_count]
    ]
    return "Commit history:\n" + "\n".join(entries)


if __name__ == "__main__":
    server = MCPServer("sample-history")
    server.tool(structured_output=False)(git_log)
    server.run()
