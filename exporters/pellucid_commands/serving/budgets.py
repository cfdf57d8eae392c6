"""The `budgets` subcommand: the accounts of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid_commands.inspection.output import say, say_json, table
from pellucid_commands.serving.options import add_store_argument, check_existing, opened_store
from pellucid_exporters.stored import text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.budgets import Amounts, BudgetState

_TITLES: Final = ("BUDGET", "PERIOD", "COST", "TOKENS", "CALLS", "RESERVED", "ESTIMATED")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid budgets`."""
    add_store_argument(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")


def run(options: Namespace) -> int:
    """Print the accounts, and return the exit code.

    Raises:
        ConfigError: the store cannot be opened, or there is no such file.
        StoreUnavailable: the database did not answer in time.
    """
    check_existing(options.store)
    found = anyio.run(_read, options)
    if options.json:
        say_json({"budgets": [_document(name, state) for name, state in found]})
    elif found:
        say(*table(_TITLES, [_cells(name, state) for name, state in found], right=_TITLES[2:5]))
    else:
        say("the store has no budgets")
    return 0


async def _read(options: Namespace) -> tuple[tuple[str, BudgetState], ...]:
    async with opened_store(options, None) as store:
        return await store.list_budgets()


def _document(name: str, state: BudgetState) -> dict[str, Any]:
    amounts = {kind: getattr(state, kind)._asdict() for kind in ("spent", "reserved", "estimated")}
    return {"name": name, "period": state.period, **amounts}


def _cells(name: str, state: BudgetState) -> tuple[str, ...]:
    spent = state.spent
    return (
        name,
        state.period,
        text.money(spent.cost),
        f"{spent.tokens:,.0f}",
        f"{spent.model_calls:,.0f}",
        _all_of(state.reserved),
        _all_of(state.estimated),
    )


def _all_of(amounts: Amounts) -> str:
    if not any(amounts):
        return ""
    return f"{text.money(amounts.cost)}, {amounts.tokens:,.0f} tokens, calls: {amounts.model_calls:,.0f}"


COMMAND: Final = Command(
    name="budgets",
    help="List the accounts of the budgets in a store of durable runs.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid budgets --store sqlite:///budgets.db",
        "pellucid budgets --store postgresql://app@localhost/runs --json",
    ),
)
