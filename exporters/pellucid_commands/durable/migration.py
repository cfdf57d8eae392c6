"""`pellucid durable migrate`: the schema of a store, and what this version of Pellucid would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid_commands.durable.options import REFUSED, add_shared
from pellucid_commands.inspection.output import flat, say, say_json
from pellucid_commands.serving.options import opened_store, schema_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_migrate(parser: ArgumentParser) -> None:
    """Declare the options of `migrate`."""
    add_shared(parser)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if there is something to change"
    )


async def migrate(options: Namespace) -> int:
    """Bring the schema to the revision of this version, or say whether that is necessary."""
    state = await schema_of(options.store)
    is_current = not state.statements
    if not is_current and not options.check:
        async with opened_store(options, None):
            pass
    if options.json:
        say_json({"revision": state.revision, "needed": state.needed, "statements": list(state.statements)})
    elif is_current:
        say(f"revision {state.revision}: nothing to change")
    elif options.check:
        say(*(f"{flat(text)};" for text in state.statements), _described(state.revision, state.needed))
    else:
        say(f"revision {state.needed}: migrated from {_named(state.revision)}")
    return REFUSED if options.check and not is_current else 0


def _described(revision: int, needed: int) -> str:
    return f"{_named(revision)}, and this version of Pellucid needs {needed}; `pellucid durable migrate` runs the above"


def _named(revision: int) -> str:
    return f"revision {revision}" if revision else "an empty database"
