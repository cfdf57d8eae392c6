"""Tools that the protocol does not allow, put aside before the MCP SDK refuses a whole list for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_types import ListToolsResult
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

_ASIDE: Final = "pellucid.broken"
"""Where they are put, in a page's `_meta`. A server cannot put any there: what it sends is JSON."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that a server lists as a tool. Attributes: name: empty if it has none; problem: what is wrong."""

    name: str
    problem: str


def put_aside(result: dict[str, Any], version: str) -> None:
    """Take the broken tools out of a page of a list; if something else is wrong with it, leave it to be refused."""
    listed = result.get("tools")
    if not isinstance(listed, list) or _problem(result, version) is None:
        return
    if _problem({**result, "tools": []}, version) is not None:
        return
    problems = [_problem({**result, "tools": [tool]}, version) for tool in listed]
    result["tools"] = [tool for tool, problem in zip(listed, problems, strict=True) if problem is None]
    broken = tuple(
        Broken(_name(tool), problem) for tool, problem in zip(listed, problems, strict=True) if problem is not None
    )
    result["_meta"] = {**(result.get("_meta") or {}), _ASIDE: broken}


def set_aside(page: ListToolsResult) -> tuple[Broken, ...]:
    """Return the tools that were taken out of a page."""
    aside = (page.meta or {}).get(_ASIDE, ())
    return tuple(each for each in aside if isinstance(each, Broken)) if isinstance(aside, tuple) else ()


def first_problem(error: ValidationError) -> str:
    """Return where the first problem is and what it is, without any of the values that there are."""
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
