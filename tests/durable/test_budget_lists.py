"""All accounts of a store, as the method and `pellucid budgets` list them."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import ConfigError
from pellucid.budgets import Amounts, Need
from pellucid_commands.serving.budgets import COMMAND
from support.stores import Location

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.durable import RunStore

NEED = Need(Amounts(), Amounts(0.5, 1_000, 1))


async def fill(store: RunStore) -> None:
    """Make accounts of two budgets: one with a call that has ended, in flight and lost, one of two periods."""
    for number, lasts in enumerate([60.0, 60.0, 0.0]):
        await store.reserve_budget(f"r{number}", "tenant-7", None, (20.0, None, None), NEED, lasts)
    await store.settle_budget("r0", Amounts(0.25, 800, 1))
    await store.reserve_budget("other", "team", "day", (None, 10_000, None), NEED, 60.0)


def call(location: Location, *arguments: str) -> int:
    """Run the command; return the exit code."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(["--store", location.url, *arguments]))


@pytest.mark.anyio
async def test_accounts_are_listed(store: RunStore) -> None:
    """By name, with what is spent, reserved, and spent without a report; as `read_budget` returns each."""
    await fill(store)
    listed = await store.list_budgets()
    assert [name for name, _ in listed] == ["team", "tenant-7"]
    read = [await store.read_budget("team", "day"), await store.read_budget("tenant-7", None)]
    assert [state for _, state in listed] == read
    (_, team), (_, tenant) = listed
    assert team.period == datetime.now(UTC).strftime("%Y-%m-%d")
    assert team.reserved == Amounts(0.5, 1_000, 1)
    assert (tenant.spent, tenant.estimated) == (Amounts(0.75, 1_800, 2), Amounts(0.5, 1_000, 1))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str) -> None:
    """A line for each account, or one JSON object; a file that is missing is named, and not created."""
    location = Location(f"sqlite:///{tmp_path}/budgets.db")

    async def make() -> None:
        async with location.open():
            pass

    async def use() -> None:
        async with location.open() as store:
            await fill(store)

    with pytest.raises(ConfigError, match=r"there is no store '.*budgets\.db'; check --store"):
        call(location)
    assert list(tmp_path.iterdir()) == []
    anyio.run(make, backend=backend)
    assert call(location) == 0
    assert capsys.readouterr().out == "the store has no budgets\n"
    anyio.run(use, backend=backend)
    assert call(location) == 0
    title, team, tenant = capsys.readouterr().out.splitlines()
    assert title.split() == ["BUDGET", "PERIOD", "COST", "TOKENS", "CALLS", "RESERVED", "ESTIMATED"]
    assert team.split()[0] == "team"
    assert tenant.split()[:4] == ["tenant-7", "$0.75", "1,800", "2"]
    assert tenant.endswith("$0.5, 1,000 tokens, calls: 1")
    assert call(location, "--json") == 0
    budgets = json.loads(capsys.readouterr().out)["budgets"]
    assert budgets[1] == {
        "name": "tenant-7",
        "period": "",
        "spent": {"cost": 0.75, "tokens": 1_800, "model_calls": 2},
        "reserved": {"cost": 0.5, "tokens": 1_000, "model_calls": 1},
        "estimated": {"cost": 0.5, "tokens": 1_000, "model_calls": 1},
    }
