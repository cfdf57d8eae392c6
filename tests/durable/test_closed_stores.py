"""Stores that are not open: what uses them is refused by name, and a store can be opened again."""

from __future__ import annotations

import logging
import re
import sqlite3
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pytest

from pellucid import Agent, Budget
from pellucid.budgets import BudgetError
from pellucid.durable import DurableRuns, RunStore
from pellucid.errors import StoreError, StoreUnavailable
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

AGENT = Agent("agent", model=ScriptedModel(*["hello"] * 100))


def exists(location: Location) -> bool:
    """Return whether the database has anything of a store."""
    if location.server is None:
        try:
            with closing(sqlite3.connect(f"{location.url.replace('sqlite:///', 'file:')}?mode=ro", uri=True)):
                return True
        except sqlite3.OperationalError:
            return False
    with psycopg.connect(location.url) as connection:
        found = connection.execute("SELECT to_regnamespace(%s)", [location.options["schema"]]).fetchone()
    return found is not None and found[0] is not None


USES: dict[str, Callable[[RunStore], Awaitable[Any]]] = {
    "submit": lambda store: DurableRuns(store, [AGENT]).submit(AGENT, "Hi"),
    "run": lambda store: DurableRuns(store, [AGENT]).status("run"),
    "recover": lambda store: DurableRuns(store, [AGENT]).work_until_idle(),
    "conversation": lambda store: AGENT.session("customer-7", store=store).messages(),
    "read": lambda store: Budget("b", tokens=1, store=store).read(),
    "has_events": lambda store: store.wait_for_events("run", 0, 60.0),
}
SESSION_RUN: dict[str, Callable[[RunStore], Awaitable[Any]]] = {
    "submit": lambda store: AGENT.session("customer-7", store=store).run("Hi")
}


def refused(operation: str, location: Location) -> str:
    """Return the pattern of the error."""
    name = r"runs\.db" if location.server is None else "/"
    return rf"^{operation}: store '.*{name}.*' is not open: .* use it within `async with`$"


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors of a group, or an error that is in none."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@pytest.mark.parametrize(("operation", "use"), [*USES.items(), *SESSION_RUN.items()])
async def test_a_store_that_was_never_entered(
    location: Location, operation: str, use: Callable[[RunStore], Awaitable[Any]]
) -> None:
    """Durable runs, sessions and budgets are refused, and nothing is created."""
    with pytest.raises(StoreError, match=refused(operation, location)) as caught:
        await within(use(location.open()))
    assert not isinstance(caught.value, StoreUnavailable)  # which workers retry
    assert not exists(location)


@pytest.mark.parametrize(("operation", "use"), [*USES.items(), *SESSION_RUN.items()])
async def test_a_store_that_was_left(
    location: Location, operation: str, use: Callable[[RunStore], Awaitable[Any]]
) -> None:
    """They are refused, too, after they have worked."""
    async with location.open() as store:
        await store.submit("run", "agent", None)
        await AGENT.session("customer-7", store=store).run("Hi")
        await Budget("b", tokens=1, store=store).read()
    with pytest.raises(StoreError, match=refused(operation, location)):
        await within(use(store))


async def test_a_budget_of_a_store_that_is_not_open(location: Location) -> None:
    """The run fails before the model is called, and says that the store is not open."""
    model = ScriptedModel("hello")
    budget = Budget("b", tokens=10_000, store=location.open())
    with pytest.raises(BudgetError, match=r"'b' could not be asked: .*reserve: store .* is not open") as caught:
        await Agent("agent", model=model, budget=budget).run("Hi")
    assert isinstance(caught.value.__cause__, StoreError)
    assert not model.requests


async def test_a_call_that_ends_when_the_store_is_closed(location: Location, caplog: pytest.LogCaptureFixture) -> None:
    """The answer is kept, a warning says why the call is not settled, and it is once the store is open again."""
    store, stack = location.open(), AsyncExitStack()

    async def answer(_: object) -> str:
        await stack.aclose()
        return "hello"

    budget = Budget("b", model_calls=10, store=store)
    await stack.enter_async_context(store)
    with caplog.at_level(logging.WARNING, "pellucid.budgets"):
        assert (await Agent("agent", model=FunctionModel(answer), budget=budget).run("Hi")).output == "hello"
    assert re.search(r"budget\.not_settled name=b: .*settle: store .* is not open", caplog.text)
    async with store:
        assert (await budget.read()).reserved.model_calls == 1
        await Agent("agent", model=ScriptedModel("hello"), budget=budget).run("Hi")
        state = await budget.read()
    assert (state.spent.model_calls, state.reserved.model_calls) == (2, 0)


async def test_work_and_waiting_end_with_the_store(location: Location) -> None:
    """Workers and readers that wait raise the error at once instead of trying again."""
    store = location.open(poll=300.0)
    errors: list[BaseException] = []

    async def note(wait: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises((StoreError, BaseExceptionGroup)) as caught:
            await wait()
        errors.extend(leaves(caught.value))

    async def read_on() -> None:
        await store.wait_for_events("other", 0, 60.0)

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            async with store:
                runs = DurableRuns(store, [AGENT])
                run_id = await runs.submit(AGENT, "Hi")
                await store.submit("other", "other", None)
                tasks.start_soon(note, runs.work)
                tasks.start_soon(note, read_on)
                [_ async for _ in runs.events(run_id)]
    assert len(errors) >= 2
    assert all("is not open" in str(error) and type(error) is StoreError for error in errors)


def test_a_store_that_is_entered_again(location: Location) -> None:
    """It works as before, in another event loop, also for tasks that wait for other processes."""
    store = location.open(poll=300.0)

    async def use(number: int) -> None:
        async with store, location.open(poll=300.0) as other:
            runs, worker = DurableRuns(other, [AGENT]), DurableRuns(store, [AGENT])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.work)
                for _ in range(2):
                    run_id = await runs.submit(AGENT, f"Hi {number}")
                    with anyio.fail_after(30):
                        [_ async for _ in runs.events(run_id)]
                tasks.cancel_scope.cancel()

    anyio.run(use, 1)
    anyio.run(use, 2, backend="trio")
    anyio.run(use, 3)


async def test_a_store_that_is_open_is_not_entered_twice(location: Location) -> None:
    """The second one is refused, and the first one goes on."""
    async with location.open() as store:
        with pytest.raises(StoreError, match="is open already; enter it once, and share it"):
            async with store:
                pass
        assert await store.run("run") is None
