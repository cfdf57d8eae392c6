"""The chain of links that each tool call passes through, in one list.

A link is a function that takes the handler after it and returns a handler: one that waits, asks, writes or retries,
and calls the next one. `Link` says which calls need it. A chain is built once for each kind of tool of an agent, from
the links that it needs only, and a module is loaded when its link is needed first. So a call of a plain tool passes
through its span and its timeout, and through nothing else.

To add a link, write `pellucid/run/calls/<name>.py` with a function of that name, and a line in `LINKS`, whose order
`tests/sdk/calls/test_call_chain.py` has, too. What it notes of a call has a name in `pellucid.telemetry.phases`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from pellucid.messages import ToolResult
from pellucid.run.calls.call import Call, Requested
from pellucid.run.outcomes import Enqueued, Suspended, Waiting
from pellucid.run.state import Run, Setup
from pellucid.telemetry import Boundary
from pellucid.tools.tool import CallKind

Outcome: TypeAlias = ToolResult | Waiting | Suspended | Enqueued
"""Outcome of a call: a result, or that it waits for somebody."""

TurnHandler: TypeAlias = Callable[[Run, Requested], Awaitable[Outcome]]
"""Handler before the call has its turn."""

CallHandler: TypeAlias = Callable[[Run, Call], Awaitable[Outcome]]
"""Handler around the span of a call."""

Handler: TypeAlias = Callable[[Run, Boundary, Call], Awaitable[Any]]
"""Handler within the span of a call; it returns the tool's value, or raises."""


class Kind(NamedTuple):
    """Calls of an agent that share a chain.

    Attributes:
        is_durable: Whether the run has a journal.
        is_one_of_several: Whether the message has other calls, too.
        tool: Kind of the tool; None if there is none of the name. What differs between tools of one kind, such as the
            name, a link finds out when it is called.
    """

    is_durable: bool
    is_one_of_several: bool
    tool: CallKind | None


class Need(NamedTuple):
    """Traits by which the links of calls are selected.

    Attributes:
        setup: Configuration of the agent.
        kind: The calls.
    """

    setup: Setup
    kind: Kind

    @property
    def tool(self) -> CallKind | None:
        """Kind of the tool; None if there is none of the name."""
        return self.kind.tool

    @property
    def in_run(self) -> bool:
        """True if runs make the calls, and not `observe()`."""
        return not self.setup.is_standalone

    @property
    def has_policy(self) -> bool:
        """True if a permission policy decides on calls."""
        return self.setup.permissions is not None


@dataclass(frozen=True, slots=True)
class Link:
    """Link of the chain.

    Attributes:
        name: Name of the function, and of its module in this folder.
        place: Reason for its place.
        is_needed: Whether the chain of a call needs it; by default, it always does.
        module: Its module, if that has another name.
    """

    name: str
    place: str
    is_needed: Callable[[Need], bool] = lambda _need: True
    module: str | None = None


LINKS: Final = (
    Link(
        "in_turn",
        "first: a call that waits for others has neither a span nor read arguments",
        lambda need: need.in_run and (need.kind.is_one_of_several or (need.tool is not None and need.tool.serial)),
    ),
    Link("bound", "reads the arguments when the call has its turn: all links after it have a `Call`", module="core"),
    Link("journalled", "around the span: what is written has ended", lambda need: need.kind.is_durable),
    Link(
        "approved",
        "around the span: a call that waits for a person has none",
        lambda need: need.in_run and need.tool is not None and (need.has_policy or need.tool.may_ask),
    ),
    Link("in_span", "the span: what the links after it return or raise is a result", module="core"),
    Link("begun", "once, before the tool is tried", lambda need: need.kind.is_durable and need.tool is not None),
    Link(
        "guarded",
        "around the permission: each further attempt asks for it again",
        lambda need: need.tool is not None and need.setup.reliability is not None,
    ),
    Link(
        "unattended",
        "in place of the approval and the permission, which end or pause a run",
        lambda need: not need.in_run and need.tool is not None,
    ),
    Link("refused", "within the rules, which decide about arguments that do not fit, too", module="core"),
    Link(
        "elicited",
        "before the permission: a call that goes on after its questions asks for it again",
        lambda need: need.tool is not None and need.tool.elicits,
    ),
    Link(
        "permitted",
        "right before the tool: nothing that takes time is between the permission and the tool",
        lambda need: need.in_run and need.tool is not None and need.has_policy,
    ),
    Link(
        "activating",
        "knows a halt of the policy from the tool itself",
        lambda need: need.tool is not None and need.tool.is_meta,
    ),
    Link(
        "paged",
        "around the tool: what is too long for the span and the model is kept",
        lambda need: need.setup.context is not None and need.tool is not None and not need.tool.is_meta,
    ),
    Link(
        "background",
        "last: starts the tool, and does not wait for it",
        lambda need: need.tool is not None and need.tool.execution == "same-invocation",
    ),
    Link(
        "enqueued",
        "last: hands the call to another process",
        lambda need: need.tool is not None and need.tool.execution == "external-dispatch",
    ),
    Link(
        "run_tool",
        "last: runs the tool within its timeout",
        lambda need: need.tool is None or need.tool.execution is None,
        module="core",
    ),
)
"""The links from the first that a call enters to the last."""


def chain_of(need: Need) -> list[Link]:
    """Return the links that a call passes through."""
    return [link for link in LINKS if link.is_needed(need)]


def handler_of(setup: Setup, kind: Kind) -> TurnHandler:
    """Return a new chain for calls of a kind, which the agent keeps."""
    setup.handlers[kind] = handler = _composed(chain_of(Need(setup, kind)))
    return handler


def _composed(links: list[Link]) -> TurnHandler:
    """Return the handler that passes a call through links."""
    functions = [getattr(import_module(f"pellucid.run.calls.{link.module or link.name}"), link.name) for link in links]
    handler = functions.pop()
    for function in reversed(functions):
        handler = function(handler)
    composed: TurnHandler = handler
    return composed
