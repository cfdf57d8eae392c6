"""Numbers of a run, from three sources that do not depend on each other, and checks that compare them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from pellucid import semconv
from pellucid_commands.demo.durable.agent import ORDINARY, QUOTES
from pellucid_commands.demo.durable.jobs import OUTCOME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pellucid_commands.demo.durable.results import Results

Row: TypeAlias = tuple[str, int | None, int | None, int | None, str]
"""Name, number on disk, in the store and by telemetry (None if the source cannot know it), and a remark."""

Check: TypeAlias = tuple[str, bool]

HEAD = ("counted", "on disk", "store", "telemetry", "")


def rows_of(results: Results) -> list[Row]:
    """Return the rows of the table."""
    return [*_rows_of_calls(results), *_rows_of_settlements(results), *_rows_of_passes(results)]


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


def _rows_of_calls(results: Results) -> Iterator[Row]:
    yield (
        "model calls",
        results.noted("model"),
        len(results.steps("answer")),
        results.measured(semconv.OPERATION_DURATION),
        f"cut off by the kill, and made again: {results.noted('stall')}",
    )
    done = Counter(str(value["tool"]) for value in results.steps("started"))
    yield (
        f"calls of {ORDINARY}",
        results.noted("tool", tool=ORDINARY),
        done[ORDINARY],
        results.measured(semconv.TOOL_DURATION, {semconv.TOOL_NAME: ORDINARY}),
        "not idempotent",
    )
    for tool in QUOTES:
        yield (
            f"dispatches of {tool}",
            results.noted("enqueue", tool=tool),
            sum(call.tool == tool and call.dispatched_at is not None for call in results.calls.values()),
            results.measured(semconv.TOOL_DURATION, {semconv.TOOL_NAME: tool}),
            "",
        )


def _rows_of_settlements(results: Results) -> Iterator[Row]:
    def answers(outcome: str) -> int:
        return results.noted("answer", outcome=outcome)

    def settlements(outcome: str, status: str) -> int:
        labels = {semconv.DURABLE_SETTLEMENT: outcome, semconv.ASYNC_STATUS: status}
        return results.measured(semconv.DURABLE_SETTLEMENTS, labels)

    completed, expired = (results.calls_that_are(status) for status in ("completed", "expired"))
    yield "answers that count", answers("settled"), completed, settlements("settled", "completed"), ""
    yield "repeated answers", answers("duplicate"), None, settlements("duplicate", "completed"), "no effect"
    yield "expired calls", None, expired, settlements("settled", "expired"), "no heartbeat in time"
    yield "late answers", answers("late"), None, results.measured(semconv.EXTERNAL_LATE), "no effect"
    yield "waits for an answer", None, completed + expired, results.measured(semconv.EXTERNAL_WAIT), ""


def _rows_of_passes(results: Results) -> Iterator[Row]:
    run = results.run
    yield "kills", results.noted("kill"), None, None, ", ".join(_codes(results))
    yield "passes", None, run.pass_no, results.measured(semconv.DURABLE_PASSES), f"claims: {run.fence}"
    yield "recovered passes", None, run.fence - run.pass_no, results.measured(semconv.DURABLE_RECOVERIES), ""


def _codes(results: Results) -> Sequence[str]:
    return [f"exit code {note.facts['exit_code']}" for note in results.notes if note.action == "kill"]
