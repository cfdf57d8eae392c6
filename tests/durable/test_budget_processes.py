"""Processes that share a budget in one database, and one of them that is killed."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import Budget
from pellucid.budgets import Amounts
from support.processes import PATIENCE, command

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

SCRIPT = """
import json, os, signal, sys

import anyio

from pellucid import Agent, Budget, Limits, Message, ModelResponse, Usage
from pellucid.durable import open_store
from pellucid.testing import FunctionModel

url, options, runs, deadly = sys.argv[1:]


async def answer(request):
    await anyio.lowlevel.checkpoint()
    if deadly == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    size = min(300, request.settings["max_tokens"])
    return ModelResponse(message=Message("assistant", "done"), usage=Usage(input_tokens=5, output_tokens=size))


async def main():
    async with open_store(url, **json.loads(options)) as store:
        budget = Budget("shared", tokens=20_000, per="month", store=store)
        limits, settings = Limits(model_timeout=30), {"max_tokens": 400}
        agent = Agent("a", model=FunctionModel(answer), budget=budget, limits=limits, settings=settings)
        used = 0

        async def run():
            nonlocal used
            usage = (await agent.run("go")).usage
            used += (usage.input_tokens or 0) + (usage.output_tokens or 0)

        with anyio.fail_after(90):
            async with anyio.create_task_group() as tasks:
                for _ in range(int(runs)):
                    tasks.start_soon(run)
        print(used)


anyio.run(main)
"""


async def state_of(store: RunStore) -> tuple[Amounts, Amounts, Amounts]:
    """Return what is spent, reserved and estimated."""
    state = await Budget("shared", tokens=20_000, per="month", store=store).read()
    return state.spent, state.reserved, state.estimated


def test_two_processes(location: Location) -> None:
    """Two processes never spend more than their shared budget, and its account is the sum of what each has used."""

    async def state() -> tuple[Amounts, Amounts, Amounts]:
        async with location.open() as store:
            return await state_of(store)

    anyio.run(state)
    processes = [
        subprocess.Popen(command(SCRIPT, *location.arguments, 60, "alive"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    used = [int(process.communicate(timeout=PATIENCE)[0]) for process in processes]
    spent, reserved, estimated = anyio.run(state)
    assert [process.returncode for process in processes] == [0, 0]
    assert spent.tokens == sum(used)
    assert 10_000 < spent.tokens <= 20_000
    assert (reserved, estimated) == (Amounts(), Amounts())


@pytest.mark.anyio
async def test_a_killed_process(location: Location, store: RunStore) -> None:
    """The reservation of a killed process counts until it expires, and then as spent, marked as estimated."""
    with anyio.fail_after(PATIENCE):
        process = await anyio.run_process(command(SCRIPT, *location.arguments, 1, "deadly"), check=False)
    assert process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    spent, reserved, _ = await state_of(store)
    assert (spent, reserved.model_calls) == (Amounts(), 1)
    assert 400 < reserved.tokens < 420
    location.execute("UPDATE budget_reservations SET expires_at = expires_at - 1000")
    assert await state_of(store) == (reserved, Amounts(), reserved)
