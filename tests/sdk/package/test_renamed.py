"""Old names of arguments and attributes: each works as before, with a warning that names the new one."""

from __future__ import annotations

import inspect
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, ExternalRequest, ExternalResult, Limits, Tool, ToolCall, ToolContext, tool
from pellucid.approvals import ExternalCall
from pellucid.approvals.checkpoint import Checkpoint, to_text
from pellucid.durable import CallRecord, CallTokens
from pellucid.instants import instant
from pellucid.testing import ScriptedModel
from pellucid.testing.outside import JobCompletion
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

REQUEST = ExternalRequest(
    result_id="r", tool_name="job", tool_call_id="c", arguments={}, dispatched_at=1.0, expires_at=61.5
)

RECORD = CallRecord(
    *("c", "r", 1, 1, "external", "job", "call", "processing", None, None, None),
    expires_at=5.0,
    heartbeat_at=None,
    progress=None,
    created_at=0.0,
    dispatched_at=None,
    settled_at=None,
    trace=None,
    settlement_trace=None,
)


def nothing(arguments: Any, ctx: Any) -> None:
    """Do nothing."""


def job(**options: Any) -> Tool:
    """Return a tool whose work another process does, made by the decorator."""
    return tool(name="job", execution="external-dispatch", **options)(lambda: None)


@pytest.mark.parametrize(
    ("make", "old", "new", "value"),
    [
        (Limits, "deadline", "timeout", 5.0),
        (Limits, "deadline", "timeout", None),
        (
            lambda **given: Tool(name="t", run=nothing, execution="external-dispatch", **given),
            "deadline",
            "expires_in",
            9,
        ),
        (job, "deadline", "expires_in", 9.0),
        (lambda **given: replace(job(), **given), "deadline", "expires_in", 9.0),
        (lambda **given: replace(REQUEST, **given), "deadline", "expires_at", 9.0),
        (lambda **given: replace(RECORD, **given), "deadline", "expires_at", 9.0),
        (lambda **given: replace(RECORD, **given), "payload", "output", {"x": 1}),
        (JobCompletion, "response", "output", 1),
    ],
)
def test_an_old_name_is_the_new_one(make: Callable[..., Any], old: str, new: str, value: Any) -> None:
    """An old name works as an argument and as an attribute, each with one warning that names the new one."""
    with pytest.warns(DeprecationWarning, match=rf"\({old}=\) is deprecated; use `{new}=`$") as caught:
        made = make(**{old: value})
    assert len(caught) == 1
    assert getattr(made, new) == value
    with pytest.warns(DeprecationWarning, match=rf"\.{old} is deprecated; use `{new}`$") as caught:
        assert getattr(made, old) == value
    assert [warning.filename for warning in caught] == [__file__]
    assert getattr(make(**{new: value}), new) == value


@pytest.mark.parametrize(
    "use",
    [
        lambda: Limits(deadline=1),  # type: ignore[call-arg]
        lambda: tool(execution="same-invocation", deadline=1),  # type: ignore[call-overload]
        lambda: CallTokens("k" * 32).issue("call", "run", deadline=1.0),  # type: ignore[call-arg]
    ],
)
def test_a_warning_is_shown_where_the_old_argument_is(use: Callable[[], Any]) -> None:
    """A warning points to the line with the old argument of a class, a function or a method."""
    with pytest.warns(DeprecationWarning, match=r"^[\w.]+\(deadline=\) is deprecated; use `\w+=`$") as caught:
        use()
    assert [warning.filename for warning in caught] == [__file__]


def test_what_the_model_reads_of_a_result() -> None:
    """The old names of `ExternalResult.of(output=)` and `output_or_error` work with a warning."""
    with pytest.warns(DeprecationWarning, match=r"ExternalResult.of\(content=\) is deprecated; use `output=`$"):
        result: Any = ExternalResult.of("r", "failed", content="no luck")  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"ExternalResult.content is deprecated; use `output_or_error`$"):
        assert result.content == result.output_or_error == "no luck"


def test_a_signature_has_the_new_name_only() -> None:
    """The signature of a class shows the new name only."""
    names = inspect.signature(Limits).parameters
    assert ("timeout" in names, "deadline" in names) == (True, False)


@pytest.mark.anyio
@pytest.mark.parametrize("context", [ToolContext, DiscoveryContext])
async def test_contexts_still_speak_the_clock_of_the_event_loop(context: Any) -> None:
    """`deadline` of a context is a time of the event loop, and None without a limit."""
    end = anyio.current_time() + 60
    with pytest.warns(DeprecationWarning, match="use `expires_at=`"):
        ctx = context(deadline=end)
    assert ctx.expires_at.tzinfo is UTC
    assert abs(ctx.expires_at - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=30)
    with pytest.warns(DeprecationWarning, match="use `expires_at`"):
        assert ctx.deadline == pytest.approx(end, abs=0.1)
    with pytest.warns(DeprecationWarning, match="use `expires_at`"):
        assert context().deadline is None


def test_a_context_can_be_made_without_an_event_loop() -> None:
    """`deadline` of a context that is made without an event loop is a time of asyncio's clock."""
    ctx: Any = ToolContext(expires_at=datetime.now(UTC) + timedelta(seconds=60))
    with pytest.warns(DeprecationWarning, match="use `expires_at`"):
        assert ctx.deadline == pytest.approx(time.monotonic() + 60, abs=30)


@pytest.mark.anyio
async def test_tools_and_providers_learn_when_their_run_must_end() -> None:
    """Tools and providers get the end of their run in UTC, and None without a limit."""
    seen: list[datetime | None] = []

    class Provider:
        id = "own"

        def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
            seen.append(ctx.expires_at)
            return [Tool(name="threaded", run=lambda arguments, ctx: seen.append(ctx.expires_at))]

    @tool
    async def looped(ctx: ToolContext) -> None:
        """Look."""
        seen.append(ctx.expires_at)

    for timeout in (60.0, 1e15, None):
        model = ScriptedModel([ToolCall("threaded"), ToolCall("looped")], "done")
        agent = Agent("a", model=model, tools=[looped], providers=[Provider()], limits=Limits(timeout=timeout))
        await within(agent.run("x"))
        if timeout == 60.0:
            [end] = {*seen}
            assert end is not None
            assert timedelta(seconds=20) < end - datetime.now(UTC) <= timedelta(seconds=60)
        else:
            assert {*seen} == {None}
        seen.clear()


def test_an_external_call_expires_at_an_instant() -> None:
    """`deadline` of an external call is in seconds since the epoch."""
    external: Any = ExternalCall(result_id="r", complete_path="/", expires_at=NOON)
    with pytest.warns(DeprecationWarning, match="use `expires_at`"):
        assert external.deadline == NOON.timestamp()
    with pytest.warns(DeprecationWarning, match="use `expires_at=`"):
        old: Any = replace(external, deadline=NOON.timestamp() + 1)
    assert old.expires_at == NOON + timedelta(seconds=1)


def test_a_time_after_the_last_year_is_never() -> None:
    """A time after the last year is None."""
    assert [instant(seconds) for seconds in (1e12, 1e300, float("inf"))] == [None, None, None]


def test_checkpoints_and_journals_keep_their_names() -> None:
    """Checkpoints and journals keep the name `deadline`."""
    state = Checkpoint(
        id="0" * 32, agent="a", run_id="r", trace={}, created_at=0.0, messages=[{"role": "user", "parts": []}],
        external=[REQUEST],
    )  # fmt: skip
    assert state.to_dict()["external"][0]["deadline"] == 61.5
    assert '"deadline":61.5' in to_text(state.partial())
    assert Checkpoint.from_dict(state.partial(), is_partial=True).external == [REQUEST]
