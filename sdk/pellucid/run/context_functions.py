"""Functions of the context of a run that belongs to no call, such as those of the instructions; loaded at first use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pellucid.concurrency.race import OutOfTime, race
from pellucid.context import Identity, ToolContext
from pellucid.errors import PellucidError
from pellucid.failures import contained, describe
from pellucid.run.state import Run
from pellucid.tools.functions import name_of


async def call_function(
    run: Run, function: Callable[[ToolContext[Any]], Any], failed: Callable[[str, str], PellucidError]
) -> Any:
    """Call a function of the application, sync or async, with the context of a run, and return its value.

    Args:
        run: The run.
        function: The function.
        failed: Returns the error to raise, given the function's name and the problem.

    Raises:
        PellucidError: the function failed, or did not return within `Limits.tool_timeout`.
    """
    name, within = name_of(function), run.limits.tool_timeout
    context: ToolContext[Any] = ToolContext(
        run_id=run.scope.run_id,
        iteration=run.scope.iteration,
        identity=run.scope.identity,
        signal=run.caller.signal,
        expires_at=run.scope.expires_at,
        deps=run.caller.deps,
    )

    async def call() -> Any:
        value = function(context)
        return await value if inspect.isawaitable(value) else value

    try:
        return await race(call, within=within, token=run.token, at_once=True)
    except OutOfTime as error:
        raise failed(name, f"did not return within {within:g} s (Limits.tool_timeout)") from error
    except BaseException as error:  # noqa: BLE001  (the function is the application's)
        failure = contained(error)
        raise failed(name, f"failed: {describe(failure)}{_remedy(run, failure)}") from failure


def _remedy(run: Run, failure: BaseException) -> str:
    """Return what to do if a function reads the identity of a run that has none."""
    if not isinstance(failure, AttributeError) or failure.obj is not None or run.scope.identity is not None:
        return ""
    if failure.name not in Identity.__dataclass_fields__:
        return ""
    return "; the run has no identity: give it identity=, or let the function return early if ctx.identity is None"
