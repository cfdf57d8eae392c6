"""Scripted model without a vendor; its answers contain only results of the tools."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pellucid import ToolCall, ToolResult
from pellucid.testing import FunctionModel
from pellucid_exporters.console.tree import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pellucid import ModelRequest

QUESTION: Final = "What is the latest change in this repository, how old is it, and what are its recent commits about?"

MOST_COMMITS: Final = 20

_COMMIT: Final = re.compile(
    r"^Commit: (?P<hash>[0-9a-f]{40,64})\nAuthor: (?P<author>.*)\nDate: (?P<date>.*)\nMessage: (?P<subject>.*)$",
    re.MULTILINE,
)


def scripted_model(repository: Path) -> FunctionModel:
    """Return a model that asks git and the clock, then has the commit subjects counted, then answers."""

    def decide(request: ModelRequest) -> str | Sequence[ToolCall]:
        results = {
            part.name: part for message in request.messages for part in message.parts if isinstance(part, ToolResult)
        }
        for result in results.values():
            if result.is_error:
                return f"I cannot tell, because {result.name} failed: {result.response}"
        if not results:
            return [
                ToolCall("git_log", {"repo_path": str(repository), "max_count": MOST_COMMITS}, "call_1"),
                ToolCall("get_current_time", {"timezone": "UTC"}, "call_2"),
            ]
        commits = read_log(_data(results["git_log"]))
        if not commits:
            return f"I cannot tell, because git_log returned no commit: {results['git_log'].response}"
        if "count_words" not in results:
            subjects = "\n".join(commit["subject"] for commit in commits)
            return [
                ToolCall("count_words", {"text": subjects}, "call_3"),
                ToolCall("top_words", {"text": subjects, "count": 3}, "call_4"),
            ]
        return _answer(commits, {name: _data(result) for name, result in results.items()})

    return FunctionModel(decide, name="scripted")


def read_log(text: str) -> list[dict[str, str]]:
    """Return hash, author, date and subject of the commits in the answer of `git_log`, the latest first."""
    return [match.groupdict() for match in _COMMIT.finditer(text)]


def _answer(commits: Sequence[Mapping[str, str]], results: Mapping[str, Any]) -> str:
    latest, oldest = commits[0], datetime.fromisoformat(commits[-1]["date"])
    now = datetime.fromisoformat(results["get_current_time"]["datetime"])
    words = f"Words in their subjects: {results['count_words']}"
    if often := [f"{top['word']} ({top['count']}x)" for top in results["top_words"] if top["count"] > 1]:
        words += f", most often {', '.join(often)}"
    return (
        f"The latest commit is {latest['hash'][:10]} by {latest['author']}, "
        f'{_age(datetime.fromisoformat(latest["date"]), now)}: "{latest["subject"].strip() or "(no message)"}".\n'
        f"Commits read: {len(commits)}, back to {oldest:%Y-%m-%d}. {words}.\n"
        f"It is {now:%A, %Y-%m-%d %H:%M:%S} UTC."
    )


def _data(result: ToolResult) -> Any:
    """Return the data of a tool result; MCP servers send JSON as text."""
    response = result.response
    return json.loads(response) if isinstance(response, str) and response[:1] in ("{", "[") else response


def _age(then: datetime, now: datetime) -> str:
    minutes = int((now - then).total_seconds() // 60)
    for unit, length in (("day", 24 * 60), ("hour", 60), ("minute", 1)):
        if minutes >= length:
            return f"{counted(minutes // length, unit)} ago"
    return "just now"
