"""Phase 4: run the tools that the model requested. Every call id gets exactly one result; failures are results."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from pellucid.concurrency.race import together
from pellucid.errors import ToolError
from pellucid.messages import ToolCall, ToolResult
from pellucid.run.calls.call import Requested, bind
from pellucid.run.calls.chain import Kind, Outcome, handler_of
from pellucid.run.calls.core import span_of
from pellucid.run.outcomes import Paused, Suspended, Waiting
from pellucid.run.state import Run
from pellucid.run.tool_results import with_note
from pellucid.tools.catalog import Catalog
from pellucid.types import JSONObject

if TYPE_CHECKING:
    from pellucid.approvals.external import ExternalRequest
    from pellucid.approvals.settling import Settled


async def dispatch(
    run: Run, catalog: Catalog, requests: Sequence[ToolCall], approvals: Mapping[str, Settled] | None = None
) -> Paused:
    """Run the calls of one message concurrently, up to `Limits.parallel_tools`.

    Of several calls with the same id only the first is run; a note in its result reports the others. Calls that
    discover tools run one by one before all other calls, which may call the discovered tools: the order of activation
    is the order of the offer.

    Args:
        run: The run.
        catalog: Catalogue in which tool names are resolved.
        requests: The calls; each has an id.
        approvals: Settled approvals, by ids of calls, in a resumed run.

    Returns:
        Results and calls that wait for a person, each in call order.
    """
    if len(requests) == 1:
        [request] = requests
        outcome = await handle(run, catalog, request, approvals)
        return Paused([outcome], (), {}, {}) if isinstance(outcome, ToolResult) else _gathered({request.id: outcome})
    first: dict[str | None, ToolCall] = {}
    repeated = [request for request in requests if first.setdefault(request.id, request) is not request]
    slots = anyio.CapacityLimiter(run.limits.parallel_tools) if len(first) > 1 else None
    outcomes: dict[str | None, Outcome] = {}
    run.conversation.dispatched = requests, outcomes

    async def work(request: ToolCall) -> None:
        outcomes[request.id] = await handle(run, catalog, request, approvals, slots)

    others: list[ToolCall] = []
    for request in first.values():
        if request.name in catalog.discovering:
            await work(request)
        else:
            others.append(request)
    if len(others) == 1:
        await work(others[0])
    elif others:
        await together(partial(work, request) for request in others)
    for request in repeated:
        outcomes[request.id] = _reject_repeated(run, catalog, request, outcomes[request.id])
    return _gathered({call_id: outcomes[call_id] for call_id in first})


def handle(
    run: Run,
    catalog: Catalog,
    request: ToolCall,
    approvals: Mapping[str, Settled] | None,
    slots: anyio.CapacityLimiter | None = None,
) -> Awaitable[Outcome]:
    """Pass a call through the chain of its kind; the arguments are those of `dispatch`, for one call."""
    binding = catalog.bindings.get(request.name) or catalog.find_listed(request.name)
    tool = binding.tool if binding is not None else None
    kind = Kind(run.journal.is_durable, slots is not None, tool.call_kind if tool is not None else None)
    handler = run.setup.handlers.get(kind) or handler_of(run.setup, kind)
    return handler(run, Requested(request, binding, catalog, approvals, slots))


def _gathered(outcomes: Mapping[str | None, Outcome]) -> Paused:
    results: list[ToolResult] = []
    waiting: list[Waiting] = []
    nested: dict[str, JSONObject] = {}
    notes: dict[str, str] = {}
    external: list[ExternalRequest] = []
    is_enqueued = False
    for call_id, outcome in outcomes.items():
        assert call_id is not None
        if isinstance(outcome, ToolResult):
            results.append(outcome)
            continue
        if outcome.note is not None:
            notes[call_id] = outcome.note
        if isinstance(outcome, Waiting):
            waiting.append(outcome)
        elif isinstance(outcome, Suspended):
            waiting += [Waiting(request, is_reported=True) for request in outcome.approvals]
            nested[call_id] = outcome.checkpoint
            external += outcome.external
        else:
            is_enqueued = True
    return Paused(results, waiting, nested, notes, is_enqueued, external)


def _reject_repeated(run: Run, catalog: Catalog, request: ToolCall, outcome: Outcome) -> Outcome:
    """Record a call that repeats an id, and add a note to the result of that id."""
    text = (
        f"Note: you used the call id {request.id!r} for several calls of one message. Only the first was run; "
        f"call {request.name!r} again with a new id."
    )
    with span_of(run, bind(run, Requested(request, catalog.find_listed(request.name), catalog))) as b:
        b.input(request.arguments)
        b.fail(ToolError(text, error_type="repeated_call_id"))
        b.output(text)
    if isinstance(outcome, ToolResult):
        return with_note(outcome, text)
    return replace(outcome, note=f"{outcome.note}\n\n{text}" if outcome.note is not None else text)
