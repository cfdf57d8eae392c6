"""Keyword options of `Agent` and of its entry points, each described once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

from pellucid.approvals import Claims, Decision
from pellucid.context import CancelToken, Identity, Limits
from pellucid.messages import Message
from pellucid.models import Model, Prices, Settings
from pellucid.offer import Policy
from pellucid.providers import Skill, ToolProvider
from pellucid.reliability import Reliability
from pellucid.telemetry import Pipeline
from pellucid.tools import Tool
from pellucid.tools.catalog import RegistryMode
from pellucid.tools.collisions import Collisions


class AgentOptions(TypedDict, total=False):
    """Options of `Agent(name, ...)`, beside `output`."""

    model: Required[Model | str]
    """Model that answers; a name such as `openai:gpt-6-sol` is resolved."""

    instructions: str | None
    """System text."""

    settings: Settings | None
    """Request parameters of every model call, such as `{"temperature": 0.2, "max_tokens": 4096}`."""

    tools: Sequence[Tool | Callable[..., Any]]
    """Tools, or functions to make tools of; they are listed by a provider called `static`."""

    providers: Sequence[ToolProvider]
    """Further providers of tools; asked once per iteration, in this order, all at the same time."""

    skills: Sequence[Skill]
    """Instructions and tools that the model loads when it needs them."""

    limits: Limits | None
    """Bounds of each run."""

    policy: Policy | None
    """Decides which tools the model is offered, and which calls it may make."""

    telemetry: Pipeline | None
    """Where telemetry goes.

    Fields that are None come from `configure()`, else from OpenTelemetry's global providers.
    """

    description: str | None
    """Value of `gen_ai.agent.description`."""

    prices: Prices | None
    """Prices of model calls; the vendors' published prices unless given."""

    reliability: Reliability | None
    """What to do when discovery, a model or a tool fails; without it nothing is retried."""

    collisions: Collisions
    """What happens when two providers offer tools of one name; `error` unless given.

    `error` fails the run, `first` and `last` name the provider whose tool is offered, `prefix` offers the later tool as
    `<provider id>__<name>`.
    """

    registry_mode: RegistryMode
    """`full`, unless given, offers all tools to the model.

    `lazy` offers `tool_search` in their place, with which the model finds and activates them.
    """

    pin: bool
    """Withhold a tool that has changed under its name since the model was given it, or its call was approved."""


class CallerOptions(TypedDict, total=False):
    """Options of every run, new or resumed."""

    identity: Identity | None
    """On whose behalf the run acts; providers, tools and events see it. A resumed run has that of its checkpoint unless
    given."""

    signal: CancelToken | None
    """Cancels the run, from any thread."""

    deps: Any
    """Anything; tools find it as `ctx.deps`."""


class RunOptions(CallerOptions, total=False):
    """Options of `Agent.run`, `run_sync` and `stream`."""

    history: Sequence[Message]
    """The conversation so far, such as `result.messages` of the previous run."""


class ResumeOptions(CallerOptions, total=False):
    """Options of `Agent.resume`, `resume_sync` and `resume_stream`."""

    decisions: Sequence[Decision]
    """Decisions about the pending approvals; calls without one stay pending."""

    claims: Claims | None
    """Prevents another process from resuming the same checkpoint, such as `FileClaims(directory)`.

    This process never resumes it twice.
    """


def check_options(function: str, options: Mapping[str, object], known: type[Any]) -> None:
    """Check the names of keyword arguments, as Python does for parameters.

    Args:
        function: What is called, such as `Agent.run()`.
        options: The keyword arguments.
        known: The `TypedDict` that lists them.

    Raises:
        TypeError: one is unknown, or a required one is missing.
    """
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}")
    for name in sorted(known.__required_keys__):
        if name not in options:
            raise TypeError(f"{function} missing 1 required keyword-only argument: {name!r}")
