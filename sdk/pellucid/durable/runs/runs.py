"""Submit durable runs, wait for them, decide and settle what they wait for, and work on them."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from pellucid.agent import Agent
from pellucid.approvals.checkpoint import current_trace
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import CallStatus, ExternalResult
from pellucid.approvals.settling import settle as check_decisions
from pellucid.caller_checks import checked_tags
from pellucid.context import Identity
from pellucid.durable.callbacks.deliverer import Deliverer
from pellucid.durable.callbacks.options import Callbacks
from pellucid.durable.runs.code import OnChange, versions_of
from pellucid.durable.runs.conversations import Conversations, conversation_key
from pellucid.durable.runs.conversations import read as read_conversation
from pellucid.durable.runs.draining import Draining
from pellucid.durable.runs.endings import record_cancelled
from pellucid.durable.runs.live.follower import Follower, LiveEvents
from pellucid.durable.runs.live.hub import hub_of
from pellucid.durable.runs.operation import Operation
from pellucid.durable.runs.options import by_name, check_options, checked, checked_name
from pellucid.durable.runs.retention import Retention
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.retry_methods import RetryMethods, note_ended
from pellucid.durable.runs.score_methods import ScoreMethods
from pellucid.durable.runs.slots import Passes
from pellucid.durable.runs.sources import Claims, QueueSource, StoreSource
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.runs.worker import Worker
from pellucid.durable.runs.worker_methods import WorkerMethods
from pellucid.durable.states.metrics import StoreMetrics
from pellucid.durable.states.records import (
    Conversation,
    RunEvent,
    RunEventPage,
    RunState,
    StreamMode,
    approval_of,
    event_of,
    state_of,
)
from pellucid.durable.states.work_queue import WorkQueue
from pellucid.durable.store import CallbackRecord, CallRecord, Cancellation, Recovery, RunStatus, RunStore, Settlement
from pellucid.durable.store.records import FINAL
from pellucid.durable.store.retention import ages_of
from pellucid.durable.store.transactions import seconds
from pellucid.errors import CallbackRefused, ConfigError, UnknownRun
from pellucid.messages import Message, dump_messages
from pellucid.run.resume import check_answer, check_edited
from pellucid.run.resume_request import all_of
from pellucid.run.start import Input, conversation
from pellucid.telemetry import Pipeline
from pellucid.tools.schema import Validator
from pellucid.types import JSONObject, JSONValue

if TYPE_CHECKING:
    from pellucid.budgets import Budget

_WAIT = 60.0
"""Seconds after which a reader of events looks again, whatever it was notified of."""


class DurableRuns(Operation, RetryMethods, ScoreMethods, WorkerMethods):
    """Runs of agents whose steps are in a store, so that any process can continue them.

    ```python
    async with open_store("sqlite:///runs.db") as store:
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "Will it rain in Bergen?")
        await runs.work_until_idle()
        print((await runs.status(run_id)).output)
    ```

    Only the loop is durable: what a tool does besides is its own. A call that had started in a process that ended is
    not repeated, unless its tool is `idempotent`.

    Args:
        store: The store, open.
        agents: The agents that this process can run; each process that works on a run needs its agent.
        lease: Seconds after which other workers continue the run of a process that ended or stopped.
        worker: Name of this process, for people.
        poll: Seconds between sweeps for expired leases and calls, and with a queue for runs that it has not announced.
        max_expired_leases: Leases of a run that may expire in a row without a new step while it has its worker for
            itself, as it has after the first two; then the run fails, because it is what ends the processes. None for
            any number.
        deps: Value for tools, `ToolContext.deps`.
        completion: Server to which other processes return results, for `ToolContext.external`.
        callbacks: Delivery of the states of runs to callback URLs; without it no run has one.
        telemetry: Destination of the metrics of the store, as the option of an agent.
        queue: Wakes workers instead of the store, and spreads runs over them, such as `NATSQueue`.
        conversations: Treatment of a run that is submitted to a conversation in which another one has not ended:
            `refuse` it, or `queue` it until then.
        stream: When models stream their answers for readers: `read` if anybody reads the run when the answer begins,
            `always`, or `never`. With `never`, this process neither sends nor receives text of answers.
        retry: When a run goes on after a pass that has failed; None for never, so that the first error fails the run.
        retain: Seconds for which runs stay in the store after they have ended, for all or by status; workers delete
            them then, as `RunStore.purge` does. None keeps them.
        on_change: Treatment of a run whose agent has changed: this process continues it, or with `wait` it waits for
            one with the agent with which it has begun. `wait` is for agents that cannot continue each other's runs.
        version: Version of the agents, such as a release: this process continues only runs of this version, and those
            that no version has begun. Without one, `wait` goes by a digest of the model, instructions and tools.

    Raises:
        ConfigError: two agents have the same name, a number is not positive, an option has another type, or the queue
            belongs to another store.
    """

    def __init__(
        self,
        store: RunStore,
        agents: Iterable[Agent[Any, Any]],
        *,
        lease: float = 30.0,
        worker: str | None = None,
        poll: float = 1.0,
        max_expired_leases: int | None = 5,
        deps: Any = None,
        completion: Completion | None = None,
        callbacks: Callbacks | None = None,
        telemetry: Pipeline | None = None,
        queue: WorkQueue | None = None,
        conversations: Conversations = "refuse",
        stream: StreamMode = "read",
        retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008  (it does not change)
        on_change: OnChange = "continue",
        version: str | None = None,
        retain: float | Mapping[RunStatus, float] | None = None,
    ) -> None:
        self._agents = by_name(agents)
        objects = {"retry": retry, "callbacks": callbacks, "completion": completion}
        check_options(lease, poll, max_expired_leases, conversations, stream, **objects)
        self._store, self._callbacks = store, callbacks
        self._conversations, self._telemetry = conversations, telemetry
        self._metrics = StoreMetrics(store, self._agents, telemetry, poll)
        claims = Claims(
            store=store,
            agents=tuple(self._agents),
            worker=worker or f"{socket.gethostname()}:{os.getpid()}",
            lease=lease,
            max_expired_leases=max_expired_leases,
            passes=Passes(),
            versions=versions_of(self._agents, on_change, version),
        )
        if queue is not None:
            queue.attach(store)
        self._draining = Draining()
        self._hub = hub_of(store) if stream != "never" else None
        if self._hub is not None and (relay := getattr(queue, "relay", None)) is not None:
            self._hub.use(relay)
        self._worker = Worker(
            store=store,
            agents=self._agents,
            claims=claims,
            draining=self._draining,
            source=StoreSource(claims, poll) if queue is None else QueueSource(claims, queue, poll),
            poll=poll,
            deps=deps,
            completion=completion,
            metrics=self._metrics,
            hub=self._hub,
            is_always_streamed=stream == "always",
            retry=retry,
        )
        shared: dict[str, Any] = {"store": store, "metrics": self._metrics, "poll": poll}
        ages = ages_of(retain, "DurableRuns", "retain") if retain is not None else None
        self._retention = Retention(ages=ages, **shared) if ages is not None else None
        self._deliverer = Deliverer(callbacks=callbacks, **shared) if callbacks else None

    @property
    def agents(self) -> Sequence[str]:
        """Names of the agents that this process can run."""
        return list(self._agents)

    # Runs

    async def submit(
        self,
        agent: Agent[Any, Any] | str,
        input: Input,  # noqa: A002  (as in `Agent.run`)
        *,
        history: Sequence[Message] = (),
        identity: Identity | None = None,
        conversation_id: str | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        callback: str | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        """Submit a run, and return its id; the same id or idempotency key submits the same run once.

        With a `conversation_id`, the run continues after the earlier runs of this conversation, of the same tenant and
        principal. Each state in which the run waits or has ended is delivered to the URL `callback`. Budgets count in
        addition to those of the agent, in all passes of the run; their accounts are in the store of these runs. All
        passes have its tags.

        Raises:
            ConfigError: the agent is unknown, the input, the identity or a tag has another type, there are a `history`
                and a conversation, or a budget has another store.
            ConversationBusy: a run of the conversation has not ended, and runs do not queue.
            CallbackRefused: the callback URL is not allowed, or there is no `DurableRuns(callbacks=)`.
            IdempotencyConflict: the id or the key belongs to a run with another agent, input or callback.
        """
        if callback is not None:
            if self._callbacks is None:
                raise CallbackRefused("this server delivers none; set DurableRuns(callbacks=Callbacks(...))")
            self._callbacks.check(callback)
        name = checked_name(agent, identity, self._agents)
        if conversation_id is not None:
            if history:
                raise ConfigError("submit: give history= or conversation_id=, not both; a conversation has its history")
            identity = replace(identity or Identity(), conversation_id=conversation_id)
        request: JSONObject = {
            "messages": dump_messages(conversation(history, input)),
            "identity": asdict(identity) if identity is not None else None,
        }
        if budget is not None:
            from pellucid.durable.runs.budgets import dump_budgets

            request["budgets"] = cast("JSONValue", dump_budgets(budget, self._store))
        if tags:
            request["tags"] = list(checked_tags(tags))
        submission = await self._store.submit(
            run_id or uuid.uuid4().hex,
            name,
            request,
            idempotency_key=idempotency_key,
            trace=_current_trace(),
            callback=callback,
            conversation=conversation_key(identity) if identity is not None and conversation_id is not None else None,
            if_busy=self._conversations,
        )
        note_ended(submission)
        return submission.run.id

    async def status(self, run_id: str) -> RunState:
        """Return the state of a run.

        Raises:
            UnknownRun: there is no such run.
        """
        run = await self._store.run(run_id)
        if run is None:
            raise UnknownRun(run_id)
        return state_of(run, await self._store.calls(run_id) if run.status not in FINAL else ())

    async def conversation(
        self, conversation_id: str, *, identity: Identity | None = None, before: int | None = None, limit: int = 20
    ) -> Conversation:
        """Return the latest runs of a conversation, with their messages, in order.

        Args:
            conversation_id: Its id.
            identity: Tenant and principal of its runs.
            before: `Conversation.before` of a page, for the one before it.
            limit: Maximum number of runs, up to 100.

        Raises:
            ConfigError: the limit is not a number from 1 to 100.
            UnknownConversation: the principal has no conversation of that id.
        """
        identity = replace(identity or Identity(), conversation_id=conversation_id)
        return await read_conversation(self._store, identity, before, limit)

    async def events(self, run_id: str, after: int = 0) -> AsyncGenerator[RunEvent]:
        """Yield the events of a run after a sequence number, until the run has ended.

        Raises:
            UnknownRun: there is no such run.
        """
        while True:
            page = await self.event_page(run_id, after)
            for event in page.events:
                after = event.seq
                yield event
            if page.is_over:
                return
            if not page.has_more:
                await self.wait_for_events(run_id, after, _WAIT)

    def stream(self, run_id: str, after: int = 0) -> LiveEvents:
        """Follow a run: its events after a sequence number, and the pieces of its answers as models write them.

        ```python
        async with runs.stream(run_id) as events:
            async for event in events:
                if isinstance(event, RunDelta):
                    print(event.content, end="")
        ```

        Events are those of `events`, with the text of an answer as `content` of its `step.answer`. Pieces are
        `RunDelta` objects, which are not stored: a reader gets those that are written while it reads.
        """
        return LiveEvents(self._follower(run_id, after))

    def _follower(self, run_id: str, after: int) -> Follower:
        return Follower(self._store, self._hub, run_id, after)

    @asynccontextmanager
    async def _expecting_reader(self, run_id: str) -> AsyncGenerator[None]:
        """Let the first answer of a run be streamed that the block submits; a reader must come soon after it."""
        hub = self._hub
        is_first = hub is not None and await hub.expect(run_id)
        try:
            yield
        except BaseException:
            if hub is not None and is_first:
                hub.unexpect(run_id)
            raise

    async def event_page(self, run_id: str, after: int = 0) -> RunEventPage:
        """Return the events of a run after a sequence number that are there already, 1,000 at most.

        Raises:
            UnknownRun: there is no such run.
        """
        page = await self._store.events(run_id, after=after)
        return RunEventPage(tuple(map(event_of, page.events)), page.has_more, page.run_status)

    async def wait_for_events(self, run_id: str, after: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Wait until a run has events after a sequence number, or has ended; return False after `timeout` seconds.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._store.wait_for_events(run_id, after, timeout)

    async def cancel(self, run_id: str, reason: str) -> Cancellation:
        """Cancel a run: at once, or if a worker has it, when the worker writes its next step or renews its lease."""
        cancellation = await self._store.cancel(run_id, reason, [{"type": "run.cancelled"}])
        if cancellation.outcome == "cancelled" and cancellation.run is not None:
            await record_cancelled(self._store, self._agents, cancellation.run, self._telemetry)
        return cancellation

    # What runs wait for

    async def decide(self, run_id: str, decisions: Iterable[Decision]) -> list[Settlement]:
        """Store decisions about the pending approvals of a run; the outcome of each says whether it counts.

        Raises:
            CheckpointError: one is not a decision, or not valid, or its changed arguments do not fit the tool's schema;
                none was stored.
        """
        decisions = all_of(Decision, "decisions", decisions, "decide()", "state")
        calls = {call.id: call for call in await self._store.calls(run_id) if call.kind == "approval"}
        for decision in decisions:
            if (call := calls.get(decision.approval_id)) is not None:
                _check(approval_of(call), decision)
        return [await self._decide(decision, is_known=decision.approval_id in calls) for decision in decisions]

    async def _decide(self, decision: Decision, *, is_known: bool) -> Settlement:
        settlement = Settlement("unknown")
        if is_known:
            output = asdict(decision)
            approval_id = output.pop("approval_id")
            event: JSONObject = {"type": "approval.decided", "approval_id": approval_id, "approved": decision.approved}
            settlement = await self._store.settle(
                approval_id, "completed", output, events=[event], trace=_current_trace()
            )
        return await self._metrics.settled(settlement, "completed")

    async def settle(
        self,
        result_id: str,
        *,
        output: JSONValue = None,
        error: str | None = None,
        status: CallStatus | None = None,
        run_id: str | None = None,
    ) -> Settlement:
        """Store the result of a call; when it is the last one that its run waits for, a worker continues the run.

        The first result counts; the outcome says whether this one is it, repeats it, differs from it, or is late. With
        a `run_id`, the call of another run is unknown.

        Raises:
            ConfigError: the status does not fit the output and the error, or the output is not JSON.
        """
        result = ExternalResult(result_id=result_id, output=output, error=error, status=status)
        if output is not None and result.status != "completed":
            raise ConfigError(f"settle(output=) of {result_id!r}, which is {result.status}: give an output or an error")
        assert result.status is not None  # set when it was created
        if not result_id.startswith("async_tool_"):
            return await self._metrics.settled(Settlement("unknown"), result.status)
        event: JSONObject = {"type": "async_tool.settled", "result_id": result_id, "status": result.status}
        settlement = await self._store.settle(
            result_id,
            result.status,
            result.output_or_error,
            run_id=run_id,
            digest=result.digest,
            events=[event],
            trace=_current_trace(),
        )
        return await self._metrics.settled(settlement, result.status)

    async def call(self, result_id: str) -> CallRecord | None:
        """Return a call; None if there is none of that id."""
        return await self._store.call(result_id)

    async def heartbeat(self, result_id: str, *, extend: float | None = None) -> CallRecord | None:
        """Note that a call is being worked on; see `RunStore.heartbeat`.

        Raises:
            ConfigError: `extend` is not a number of seconds.
        """
        return await self._store.heartbeat(result_id, extend=extend)

    async def progress(self, result_id: str, value: JSONValue) -> CallRecord | None:
        """Store the progress of a call, which is also a heartbeat."""
        return await self._store.progress(result_id, value)

    # Callbacks

    async def deliver_callbacks(self) -> int:
        """Deliver the states that are due to their callback URLs, until none is; return the number of attempts.

        `work` does so all the time; this is for scripts and tests.

        Raises:
            ConfigError: there is no `DurableRuns(callbacks=)`.
        """
        if self._deliverer is None:
            raise ConfigError("deliver_callbacks needs DurableRuns(callbacks=Callbacks(...))")
        return await self._deliverer.deliver_due()

    async def dead_callbacks(self, *, limit: int = 100) -> tuple[CallbackRecord, ...]:
        """Return the callbacks whose latest state was given up, the oldest first."""
        return await self._store.dead_callbacks(limit=limit)

    async def retry_callback(self, run_id: str) -> bool:
        """Deliver the latest state of a run now, also after it was given up; return False if there is nothing to."""
        return await self._store.retry_callback(run_id)

    # Work

    async def check(self) -> None:
        """Check that the store can be reached.

        Raises:
            StoreUnavailable: it cannot.
        """
        await self._store.list_runs(limit=1)

    async def now(self) -> float:
        """Return the time by the clock of the store, in seconds since the epoch, which decides what has expired."""
        return await self._store.now()

    async def recover(self) -> Recovery:
        """Make the runs of processes that ended due again, and expire overdue calls; a second call changes nothing."""
        return await self._worker.recover()

    async def work(self, *, concurrency: int = 8, drain_timeout: float = 30.0) -> None:
        """Continue runs of the agents as they become due, until cancelled or drained; then give unfinished ones back.

        Callbacks of all runs in the store are delivered, too, and runs deleted that are not retained.

        Args:
            concurrency: Runs at the same time.
            drain_timeout: Seconds that passes get when an operator asks this worker to end, with `drain_worker`.

        Raises:
            ConfigError: an option is not a number of its range.
        """
        number, timeout = checked(concurrency, "work", "concurrency"), seconds(drain_timeout, "work", "drain_timeout")
        async with anyio.create_task_group() as tasks:
            if self._deliverer is not None:
                tasks.start_soon(self._deliverer.work)
            if self._retention is not None:
                tasks.start_soon(self._retention.work)
            await self._worker.work(number, timeout)
            tasks.cancel_scope.cancel()

    async def work_until_idle(self, *, concurrency: int = 8) -> int:
        """Continue the runs that are due until none is; return the number of passes.

        Raises:
            ConfigError: the number of runs is not a whole number from 1.
        """
        return await self._worker.work_until_idle(checked(concurrency, "work_until_idle", "concurrency"))


def _check(request: ApprovalRequest, decision: Decision) -> None:
    """Check a decision before it is stored.

    Raises:
        CheckpointError: it is not valid.
    """
    check_decisions([request], [decision], 0.0)
    if request.elicitation is not None:
        check_answer(request, decision)
    elif decision.arguments is not None and request.input_schema is not None:
        check_edited(request, decision.arguments, Validator(request.input_schema))


def _current_trace() -> JSONValue:
    return {**current_trace()} or None
