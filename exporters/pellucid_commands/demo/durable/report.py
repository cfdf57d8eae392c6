"""Output of the demo before and after the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid_commands.demo.durable.agent import NOTES, QUESTION, TOOLS
from pellucid_commands.demo.page import cut, next_steps, paragraph, row, say, title
from pellucid_commands.inspection.runs import run_table
from pellucid_commands.inspection.show import span_line, tree
from pellucid_exporters.local.reader import StoreReader

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid.testing.outside import OutsideService

ACCEPTED: Final = 202
DUPLICATE: Final = 200


def introduce(options: Namespace, server: str, workers: int, *, color: bool) -> None:
    """Print the introduction."""
    title("Pellucid demo: a run that survives its process", color=color)
    row("question", QUESTION)
    row("store", _place(options.store) if options.store else "a SQLite file, deleted afterwards")
    row("server", f"{server}, pellucid serve --no-worker")
    row("workers", f"pellucid worker: one that is killed while its model answers, then {workers} more")
    if options.queue is not None:
        row("queue", f"NATS at {_place(options.queue)} wakes them")
    row("tools", "reserve_dock; quote_truck, whose result comes from outside; book_truck, to be approved")
    row("model", "a script that repeats the results of the tools: no key, no network")
    say("\nSeconds, and the events of the run, as the server streams them from the store.\n")


def report(
    options: Namespace, state: dict[str, Any], local: Path, folder: Path, office: OutsideService, *, color: bool
) -> int:
    """Print what the stores know of the run, and return the exit code: 1 if anything was done twice."""
    say()
    title("Answer", color=color)
    paragraph(str(state.get("output") or state.get("error") or state["status"]))
    reader, trace_id = StoreReader(local), state["traceId"]
    passes = reader.trace(trace_id)
    title("Passes of the run, each a row of `pellucid runs`", color=color)
    for worker, text in zip(["", *(run.service for run in passes)], run_table(passes), strict=True):
        say(cut(f"  {worker:<8}  {text}"))
    say()
    processes = {"": "server", **{run.run_id: run.service for run in passes}}
    spans = [span for run_id in processes for span in reader.spans(run_id) if span.trace_id == trace_id]
    spans.sort(key=lambda span: span.start)
    title(f"Trace: {len(spans)} spans of {len(set(processes.values()))} processes, one tree", color=color)
    for prefix, _, span in tree(spans):
        say(cut(span_line(prefix, span)[4:]))
    say()
    checks = list(_checks(state, folder, office))
    title("Done once", color=color)
    for statement, is_true in checks:
        row("ok" if is_true else "WRONG", statement)
    say()
    kept = f"run {state['id']} stays in {_place(options.store)}" if options.store else ""
    next_steps(
        "pellucid demo durable",
        trace_id,
        options.otlp,
        local if local.parent != folder else None,
        ("rows", kept or "pellucid demo durable --store postgresql://user@host/database keeps them"),
        ("your agent", "docs/durable-runs.md: a durable run of your own in five minutes"),
        color=color,
    )
    return 0 if all(is_true for _, is_true in checks) else 1


def _checks(state: dict[str, Any], folder: Path, office: OutsideService) -> list[tuple[str, bool]]:
    """Return statements about the run, and whether they are true."""
    ran = Path(folder, NOTES).read_text().split()
    statuses = [delivery.status for delivery in office.deliveries]
    said = " and ".join(map(str, statuses))
    return [
        ("each tool ran once, as they have noted on disk", sorted(ran) == sorted(TOOLS)),
        (f"the service sent its result twice, which counts once: HTTP {said}", statuses == [ACCEPTED, DUPLICATE]),
        ("the run is completed", state["status"] == "completed"),
    ]


def _place(url: str) -> str:
    """Return a URL without the user and the password."""
    scheme, _, rest = url.rpartition("@")
    return f"{scheme.partition('://')[0]}://{rest}" if scheme else rest
