"""Replay of a tape: the runtime as it is, with the recorded providers, models and tools."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypedDict, Unpack, get_args, overload

from pellucid import semconv
from pellucid.agent import Agent, configuration_of
from pellucid.concurrency.sync import run_in_portal
from pellucid.errors import ConfigError, PellucidError
from pellucid.messages import Message
from pellucid.models import Model
from pellucid.models.alternatives import candidates
from pellucid.models.base import require_model
from pellucid.models.names import resolve
from pellucid.models.prices import load_prices
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import create_run
from pellucid.run.state import CallerContext, Configuration, Setup
from pellucid.telemetry import Listeners
from pellucid.telemetry.pipeline import Pipeline
from pellucid.types import OutputT_co
from pellucid_replay.comparison import differences
from pellucid_replay.continuing import resume_request
from pellucid_replay.passes import passes_of
from pellucid_replay.playback import Playback
from pellucid_replay.rebuilding import rebuilt_setup
from pellucid_replay.session import Divergence, OnDivergence, ReplayDiverged, Session
from pellucid_replay.staging import staged
from pellucid_replay.tape import Tape
from pellucid_replay.taped_run import TapedRun
from pellucid_replay.tracing import ReplayedSpan, ReplayTracerProvider, kept_pipeline


@dataclass(frozen=True, kw_only=True)  # with slots, Python 3.11 cannot call `Replay[Output](...)`
class Replay(Generic[OutputT_co]):
    """Outcome of a replay.

    Attributes:
        tape: Tape that was replayed.
        result: Result of the replayed run; None if it failed or was stopped.
        error: Error that ended it, as the recorded run if there is no divergence.
        divergence: First boundary that was asked for something that the recording does not have, or that differs from
            it; None if the replay was the same.
        differences: All boundaries that differ.
        is_stopped: Whether the replay was stopped where the recorded run was stopped.
        spans: Spans of the replay in the order of their starts.
    """

    tape: Tape
    result: RunResult[OutputT_co] | None
    error: Exception | None
    divergence: Divergence | None
    differences: Sequence[Divergence] = field(repr=False)
    is_stopped: bool
    spans: Sequence[ReplayedSpan] = field(repr=False)

    @property
    def outcome(self) -> str:
        """Value of `pellucid.outcome` of the run, the last one if it continued others."""
        return str(self._roots[-1].attributes.get(semconv.OUTCOME))

    @property
    def tool_calls(self) -> list[str]:
        """Names of the tools in the order of their calls, without those of nested runs."""
        return [
            str(span.attributes.get(semconv.TOOL_NAME))
            for span in self.spans
            if span.attributes.get(semconv.PHASE) == semconv.DISPATCH and span.parent in self._roots
        ]

    @property
    def _roots(self) -> list[ReplayedSpan]:
        return [
            span for span in self.spans if span.parent is None and span.attributes.get(semconv.PHASE) == semconv.RUN
        ]

    def check(self) -> Self:
        """Return the replay if it was the same as the recording.

        Raises:
            ReplayDiverged: it was not; the text names the first boundary that differs, with both sides.
        """
        if self.divergence is not None:
            raise ReplayDiverged(self.divergence)
        return self


class ReplayOptions(TypedDict, total=False):
    """Options of `replay` and `replay_sync`; described in `replay`."""

    live: Collection[str]
    model: Model | str | None
    timing: float
    on_divergence: OnDivergence
    deps: Any


@overload
async def replay(agent: None, tape: Tape, **options: Unpack[ReplayOptions]) -> Replay[Any]: ...
@overload
async def replay(agent: Agent[Any, OutputT_co], tape: Tape, **options: Unpack[ReplayOptions]) -> Replay[OutputT_co]: ...
async def replay(
    agent: Agent[Any, Any] | None,
    tape: Tape,
    *,
    live: Collection[str] = (),
    model: Model | str | None = None,
    timing: float = 0,
    on_divergence: OnDivergence = "stop",
    deps: Any = None,
) -> Replay[Any]:
    """Run an agent again, with a recorded run in place of its model, its providers and its tools.

    The runtime, the agent's permission policy, its reliability rules and its skills are those of the agent. What is not
    live never calls out. Spans have the attribute `pellucid.replay.of` and link to the recorded run; no metrics are
    recorded.

    Args:
        agent: The agent; None builds one from the recording.
        tape: The recorded run.
        live: Parts that are not answered from the tape: `"model"`, `"tool:<name>"`, `"hub:<provider id>"`.
        model: Live model in place of the agent's, also by name, such as `"openai:gpt-6-sol"`. It needs no agent.
        timing: Factor of the recorded durations: 0 for no waiting, 1 for the recorded timing.
        on_divergence: Reaction when the tape has no answer because the run differs: `"stop"`, or continue `"live"`.
        deps: Value for live tools.

    Raises:
        TapeError: the tape lacks something that the replay needs; the text names it.
        ConfigError: `live` or `model` names something that does not exist, or another option has an unknown value.
    """
    _check_options(timing, on_divergence)
    passes = checked_passes(tape)
    configured = configuration_of(agent) if agent is not None else Configuration(rebuilt_setup(passes))
    setup = configured.setup
    names = _checked(live, passes, setup, has_agent=agent is not None)
    if model is not None:
        setup, names = with_model(setup, model), names | {"model"}
    session = Session(live=names, timing=timing, on_divergence=on_divergence)
    kept = kept_pipeline(configured.pipeline)
    return await played(setup, passes, session, kept, deps=deps, has_request=agent is not None)


def checked_passes(tape: Tape) -> Sequence[TapedRun]:
    """Return the runs that lead to the run of a tape, oldest first.

    Raises:
        TapeError: the tape lacks something that a replay needs.
    """
    passes = passes_of(tape)
    for taped in passes:
        taped.check()
    return passes


async def played(
    setup: Setup,
    passes: Sequence[TapedRun],
    session: Session,
    kept: tuple[Pipeline, ReplayTracerProvider],
    *,
    has_request: bool,
    deps: Any = None,
    caller: CallerContext | None = None,
    messages: Sequence[Message] | None = None,
) -> Replay[Any]:
    """Play recorded runs with the configuration of an agent.

    Args:
        setup: The configuration.
        passes: The runs, oldest first.
        session: Parts that are live, and the effect of a difference.
        kept: Where the telemetry goes, which keeps its spans.
        has_request: Whether requests are to be compared.
        deps: Value for live tools.
        caller: Identity and budget of the runs, if not the recorded identity and no budget.
        messages: Start of the first run, if not the recorded messages.
    """
    tape, (pipeline, tracers) = passes[0].tape, kept
    tracers.recorded = tape.catalogs
    result: RunResult[Any] | None = None
    error: Exception | None = None
    for number, taped in enumerate(passes, start=1):
        checkpoint = result.checkpoint if result is not None else None
        if checkpoint is None and taped is not passes[0]:
            break  # the run before it did not pause, which is a difference
        tracers.of = taped.root
        source = resume_request(checkpoint, passes[:number]) if checkpoint is not None else messages or taped.input
        context = _caller(taped, session, pipeline, deps)
        if caller is not None:
            context = replace(context, identity=caller.identity, budget=caller.budget)
        run = create_run(staged(setup, Playback(session, taped)), source, context)
        result = None
        session.begin(taped.root)
        try:
            result = await execute(run)
        except PellucidError as failure:
            error = failure
    # The request of a rebuilt agent has the instructions as they were recorded, with secrets masked.
    names = session.live
    checked = {"has_request": has_request, "has_ids": "model" not in names}
    found = differences(passes, tracers.spans, tracers.catalogs, **checked)
    is_live = bool(session.live) or session.is_live
    return Replay(
        tape=tape,
        result=result,
        error=None if session.token.cancelled else error,
        divergence=_first(tape, session.divergence, found, names, is_live=is_live),
        differences=found,
        is_stopped=session.stopped is not None,
        spans=tracers.spans,
    )


def _first(
    tape: Tape, noticed: Divergence | None, found: Sequence[Divergence], live: Collection[str], *, is_live: bool
) -> Divergence | None:
    """Return the first difference: that which the tape had no answer for, or one that a boundary before it shows."""
    if noticed is None:
        return found[0] if found and not is_live else None
    starts = {span.span_id: span.start for span in tape.spans}
    before = starts.get(noticed.span_id or "")
    earlier = starts.get(found[0].span_id or "") if found else None
    # A live model answers otherwise; what its answer leads to is the difference.
    is_cause = before is not None and earlier is not None and earlier < before and "model" not in live
    return found[0] if is_cause else noticed


@overload
def replay_sync(agent: None, tape: Tape, **options: Unpack[ReplayOptions]) -> Replay[Any]: ...
@overload
def replay_sync(agent: Agent[Any, OutputT_co], tape: Tape, **options: Unpack[ReplayOptions]) -> Replay[OutputT_co]: ...
def replay_sync(agent: Agent[Any, Any] | None, tape: Tape, **options: Unpack[ReplayOptions]) -> Replay[Any]:
    """Call `replay` from sync code."""
    return run_in_portal(lambda: replay(agent, tape, **options))


def _caller(taped: TapedRun, session: Session, pipeline: Pipeline, deps: Any) -> CallerContext:
    """Return the context of a run: that of the recorded one, as far as it is recorded."""
    return CallerContext(
        identity=taped.identity,
        signal=session.token,
        deps=deps,
        stream=Listeners() if any(chat.get(semconv.REQUEST_STREAM) for chat in taped.chats) else None,
        pipeline=pipeline,
        namespace=taped.namespace(),
    )


def _check_options(timing: object, on_divergence: object) -> None:
    """Check options of a replay.

    Raises:
        ConfigError: one has a value that it cannot have.
    """
    if not isinstance(timing, int | float) or not 0 <= timing < math.inf:
        raise ConfigError(f"replay(timing={timing!r}): must be a number, 0 or more")
    if on_divergence not in get_args(OnDivergence):
        raise ConfigError(f"replay(on_divergence={on_divergence!r}): must be 'stop' or 'live'")


def _checked(live: Collection[str], passes: Sequence[TapedRun], setup: Setup, *, has_agent: bool) -> frozenset[str]:
    """Check the agent, and what is to be live.

    Raises:
        ConfigError: it is another agent, or what is to be live does not exist.
    """
    if setup.name != passes[0].agent:
        raise ConfigError(
            f"replay(): the run is of agent {passes[0].agent!r}, and this is {setup.name!r}; pass that one"
        )
    names = frozenset([live] if isinstance(live, str) else live)
    hubs = {f"hub:{name}" for taped in passes for name in taped.providers}
    tools = {f"tool:{item['name']}" for catalog in passes[0].tape.catalogs.values() for item in catalog["tools"]}
    for name in names:
        if name != "model" and name not in hubs | tools:
            known = ", ".join(sorted({"model", *hubs, *tools}))
            raise ConfigError(f"replay(live={name!r}): the recording has no such part; use some of {known}")
    if names and not has_agent:
        raise ConfigError(
            f"replay(live={set(names)!r}): what is live belongs to an agent; pass the agent (--agent MODULE:NAME), "
            f"or a model (--live model=HOST:NAME)"
        )
    return names


def with_model(setup: Setup, model: Model | str) -> Setup:
    """Return the configuration with another model.

    Raises:
        ConfigError: there is no such model.
    """
    chosen = resolve(model) if isinstance(model, str) else require_model(model, "replay()")
    load_prices(setup.prices, [(candidate.provider_name, candidate.name) for candidate in candidates(chosen)])
    return replace(setup, model=chosen)
