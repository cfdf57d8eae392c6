"""Checks of a run that compare its rows, its spans and what the processes noted on disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from pellucid_commands.demo.durable.agent import QUOTES
from pellucid_commands.demo.durable.jobs import OUTCOME

if TYPE_CHECKING:
    from pellucid_commands.demo.durable.results import Results

Check: TypeAlias = tuple[str, bool]


def checks_of(results: Results) -> list[Check]:
    """Return statements about the run, and whether they are true."""
    answers = Counter(note.facts["iteration"] for note in results.notes if note.action == "model")
    killed = results.noted("stall")
    effects = Counter((note.facts["tool"], note.facts["key"]) for note in results.notes if note.action in _EFFECTS)
    rail = results.calls["quote_rail"]
    return [
        ("no tool ran twice, and no job was added to the queue twice", all(count == 1 for count in effects.values())),
        (
            "no answer of the model that is in the journal was requested again",
            sum(answers.values()) - killed == len(answers) == len(results.steps("answer")),
        ),
        (
            "each call was settled once",
            len(results.calls) == len(QUOTES) and all(call.settled_at is not None for call in results.calls.values()),
        ),
        ("the late answer changed nothing", (rail.status, rail.output) == ("expired", None)),
        ("the continuation is linked to the span that settled the call", _is_linked(results)),
        ("all spans belong to one trace", len({item.context.trace_id for item in results.spans}) == 1),
        ("the run is completed", results.run.status == "completed"),
    ]


_EFFECTS = ("tool", "enqueue")


def _is_linked(results: Results) -> bool:
    settlements = {
        item.context.span_id for item in results.spans if (item.span.attributes or {}).get(OUTCOME) == "settled"
    }
    linked = {link.context.span_id for item in results.spans for link in item.span.links}
    # Over HTTP, the server's span of the request is linked, which is below the span of the job process.
    linked |= {
        item.span.parent.span_id for item in results.spans if item.span.parent and item.context.span_id in linked
    }
    return bool(settlements) and settlements <= linked
