"""Checks of a tool's options. Imported for tools with options of asynchronous calls, or a wrong time."""

from __future__ import annotations

from typing import Any

from pellucid.errors import ConfigError
from pellucid.text import excerpt


def check_options(tool: Any) -> None:
    """Reject options that are unknown, or that have no meaning together.

    Raises:
        ConfigError: the options do not fit each other, or a time is not one.
    """
    for name in ("timeout", "expires_in", "heartbeat"):
        value = getattr(tool, name)
        if not (value is None or (isinstance(value, int | float) and value > 0)):
            shown = f"Tool({tool.name!r}, {name}={excerpt(repr(value))})"
            raise ConfigError(f"{shown}: must be a number of seconds above 0, or None")
    is_background, is_external = tool.execution == "same-invocation", tool.execution == "external-dispatch"
    problems = {
        "unknown execution; use 'same-invocation' or 'external-dispatch'": not (
            tool.execution is None or is_background or is_external
        ),
        "unknown pending; use 'continue' or 'wait'": tool.pending not in ("continue", "wait"),
        "pending='wait' needs execution='external-dispatch'": tool.pending == "wait" and not is_external,
        "expires_in needs execution; use timeout": tool.expires_in is not None and tool.execution is None,
        "heartbeat needs execution='same-invocation'": tool.heartbeat is not None and not is_background,
        "a serial tool cannot run in the background; remove one of them": tool.serial and is_background,
        "output_schema has no meaning with execution, because the model reads that the call is running": (
            tool.execution is not None and tool.output_schema is not None
        ),
    }
    if problem := next((problem for problem, applies in problems.items() if applies), None):
        options = ("execution", "pending", "expires_in", "heartbeat", "serial")
        shown = ", ".join(f"{name}={getattr(tool, name)!r}" for name in options)
        raise ConfigError(f"Tool({tool.name!r}, {shown}): {problem}")
    if tool.on_invalid_output not in ("error", "report", None):
        raise ConfigError(
            f"Tool({tool.name!r}): unknown on_invalid_output {tool.on_invalid_output!r}; use 'error', 'report' or None"
        )
