"""Keyword options of `Agent` and of its entry points, each described once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict

from pellucid.approvals import Claims, Decision, ExternalResult
from pellucid.context import CancelToken, Identity, Limits, ToolContext
from pellucid.messages import Message
from pellucid.models import Model, Prices, Settings
from pellucid.signatures import check_names
from pellucid.telemetry import Pipeline
from pellucid.tools import Tool
from pellucid.tools.catalog import RegistryMode
from pellucid.tools.collisions import Collisions
from pellucid.tools.tool import PlainFunction
from pellucid.types import DepsT

if TYPE_CHECKING:
    from pellucid.budgets import BudgetOption
    from pellucid.compaction import Context
    from pellucid.providers import Skill, ToolProvider
    from pellucid.reliability import Reliability
    from pellucid.selection import Policy


InstructionsFunction: TypeAlias = Callable[[ToolContext[DepsT]], str | Awaitable[str | None] | None]
"""Function of the instructions; see the option `instructions`."""


class _Configurable(TypedDict, Generic[DepsT], total=False):
    instructions: str | InstructionsFunction[DepsT] | Sequence[str | InstructionsFunction[DepsT]] | None
    """System text: a text, a function of the context, or a list of both.

    Functions are called for each request, with a `ToolContext` that belongs to no call, and return a text, or None to
    add nothing. Their texts come after the others, which never change, for the prompt caches of vendors. A sync
    function is called in the event loop and must not block; an async one has `Limits.tool_timeout` seconds. One that
    fails ends the run with an `InstructionsError`.
    """

    settings: Settings | None
    """Request parameters of every model call, such as `{"temperature": 0.2, "max_tokens": 4096}`."""

    tools: Sequence[Tool[DepsT] | PlainFunction[..., object]]
    """Tools, or functions to turn into tools; the provider `static` lists them."""

    providers: Sequence[ToolProvider[DepsT]]
    """Tool providers. Each lists its tools once per iteration, concurrently; the catalogue keeps this order."""

    skills: Sequence[Skill[DepsT]]
    """Instructions and tools that the model loads when it needs them."""

    limits: Limits | None
    """Bounds of each run."""

    budget: BudgetOption
    """Limit of what the runs spend on models together with others: a `Budget`, a sequence of them, or a function of the
    context that returns some or None, such as a tenant's.

    The function is called once in each run, before its first model call, with a `ToolContext` that belongs to no call;
    it may be async. All budgets count; see `Budget`.
    """

    policy: Policy | None
    """Permission policy: decides which tools the model is offered, and which calls it may make."""

    telemetry: Pipeline | None
    """Destination of the telemetry.

    Fields that are None come from `configure()`, else from OpenTelemetry's global providers.
    """

    description: str | None
    """Value of `gen_ai.agent.description`."""

    version: str | None
    """Value of `gen_ai.agent.version`, such as a release, on the spans and metrics of runs; none by default."""

    prices: Prices | None
    """Prices of model calls; the vendors' published prices unless given."""

    reliability: Reliability | None
    """Rules for failures of discovery, models and tools; without them nothing is retried."""

    collisions: Collisions
    """Policy for two providers that offer tools of the same name; `error` unless given.

    `error` fails the run, `first` and `last` offer that provider's tool, `prefix` offers the later tool as
    `<provider id>__<name>`.
    """

    registry_mode: RegistryMode
    """Form in which tools are offered; `full` unless given.

    `full` offers all tools to the model. `lazy` offers `tool_search` in their place, with which the model finds and
    activates them.
    """

    pin: bool
    """Withhold a tool that has changed under its name since the model was offered it, or its call was approved."""

    lock: str | PathLike[str] | None
    """Lock file of the tools that the `providers` may list, made by `pellucid tools lock`; none unless given."""

    on_change: Literal["refuse", "report"]
    """Treatment of a tool that differs from the lock file or is not in it; `refuse` unless given.

    `refuse` withholds it: the run goes on without the tool. `report` offers it. Both emit `tools.redefined`.
    """

    on_stale: Literal["serve", "fail"]
    """Reaction when a hub that this run has listed cannot be listed again; `serve` unless given.

    `serve` goes on with the hub's last tools until it answers or the pass ends; the run is degraded. Errors of
    the kind `auth` end the run all the same; so does a provider that `gated_tools` wraps. `fail` ends the run.
    """

    context: Context | None
    """Fits the conversation into the model's window; without it, requests have the whole conversation."""

    scorers: Sequence[Callable[..., object]]
    """Scorers of the runs that end, such as those of `pellucid.scores`; none unless given.

    They work in the background, in an event loop and a thread of their own, and never delay or fail a run. A run that
    waits for an approval or a result is scored when it ends. See `pellucid.scores.Sampled` for a share of the runs.
    """

    warm: bool
    """Warm up in the background of each event loop, when the agent is made there or with the first `Agent.ready()`."""


class AgentOptions(_Configurable[DepsT]):
    """Options of `Agent(name, ...)`, except `output`."""

    model: Model | str
    """Model that answers; a name such as `openai:gpt-6-sol` is resolved."""


class OverrideOptions(_Configurable[DepsT], total=False):
    """Options of `Agent.override`: those of `Agent`, none of them required."""

    model: Model | str
    """Model that answers."""


class CallerOptions(TypedDict, total=False):
    """Options of every run, new or resumed, besides `deps`."""

    identity: Identity | None
    """Identity on whose behalf the run acts, visible to providers, tools and events. A resumed run has the identity of
    its checkpoint unless given."""

    signal: CancelToken | None
    """Cancels the run, from any thread."""

    budget: BudgetOption
    """Budgets that count in addition to those of the agent, as its option `budget`. A checkpoint does not keep them:
    give them again when the run is resumed."""

    tags: Sequence[str]
    """Words by which the run is found later, such as `("beta", "plan:pro")`: the attribute `pellucid.run.tags` of its
    span, recorded in every capture mode. A checkpoint does not keep them, either."""


class RunOptions(CallerOptions, total=False):
    """Options of `Agent.run`, `run_sync` and `stream`."""

    history: Sequence[Message]
    """The conversation so far, such as `result.messages` of the previous run."""


class ResumeOptions(CallerOptions, total=False):
    """Options of `Agent.resume`, `resume_sync` and `resume_stream`."""

    decisions: Sequence[Decision]
    """Decisions about the pending approvals; calls without a decision stay pending."""

    results: Sequence[ExternalResult]
    """Results of calls that other processes owe; the run continues once no result and no decision is missing."""

    claims: Claims | None
    """Prevents another process from resuming the same checkpoint, such as `FileClaims(directory)`.

    This process never resumes it twice.
    """


def check_options(function: str, options: Mapping[str, object], allowed: type[Any]) -> None:
    """Check the names of keyword arguments, as Python does for parameters.

    Args:
        function: Name of the function for the message, such as `Agent.run()`.
        options: The keyword arguments.
        allowed: The `TypedDict` that lists them.

    Raises:
        TypeError: a name is unknown, or a required one is missing.
    """
    check_names(function, options, allowed)
    for name in sorted(allowed.__required_keys__):
        if name not in options:
            raise TypeError(f"{function} missing 1 required keyword-only argument: {name!r}")
