"""Invalid tools, removed from a list before the MCP SDK rejects the whole list because of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from anyio.lowlevel import checkpoint
from mcp_types import ListToolsResult
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

_META_KEY: Final = "pellucid.broken"
"""Key of the invalid tools in a page's `_meta`. A server cannot forge it: its values are JSON, not `InvalidTool`."""

_SLICE: Final = 200
"""Tools that are validated at a time, which takes milliseconds."""


@dataclass(frozen=True, slots=True)
class InvalidTool:
    """A listed tool that violates the protocol.

    Attributes:
        name: Its name; empty if it has none.
        problem: Place and message of the first violation.
    """

    name: str
    problem: str


async def remove_invalid(result: dict[str, Any], version: str) -> None:
    """Move the invalid tools of a page to its `_meta`, a slice at a time: other tasks run between two slices.

    A page that is invalid for another reason stays unchanged; the MCP SDK rejects it.
    """
    tools = result.get("tools")
    if not isinstance(tools, list) or _problem({**result, "tools": []}, version) is not None:
        return
    valid: list[Any] = []
    invalid: list[InvalidTool] = []
    for start in range(0, len(tools), _SLICE):
        part = tools[start : start + _SLICE]
        if _problem({**result, "tools": part}, version) is None:
            valid += part
        else:
            problems = [_problem({**result, "tools": [tool]}, version) for tool in part]
            valid += [tool for tool, problem in zip(part, problems, strict=True) if problem is None]
            invalid += [InvalidTool(_name(tool), each) for tool, each in zip(part, problems, strict=True) if each]
        if len(part) == _SLICE:
            await checkpoint()
    if invalid:
        result["tools"] = valid
        result["_meta"] = {**(result.get("_meta") or {}), _META_KEY: tuple(invalid)}


def invalid_tools(page: ListToolsResult) -> tuple[InvalidTool, ...]:
    """Return the tools that `remove_invalid` moved to the page's `_meta`."""
    tools = (page.meta or {}).get(_META_KEY, ())
    return tuple(tool for tool in tools if isinstance(tool, InvalidTool)) if isinstance(tools, tuple) else ()


def first_problem(error: ValidationError) -> str:
    """Return place and message of the first problem, without the invalid values."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])).removeprefix("tools.0").removeprefix(".")
    return f"{place}: {first['msg']}" if place else first["msg"]


def _problem(result: Mapping[str, Any], version: str) -> str | None:
    try:
        validate_server_result("tools/list", version, result)
    except ValidationError as error:
        return first_problem(error)
    return None


def _name(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""
