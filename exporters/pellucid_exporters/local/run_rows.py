"""Rows of runs, derived from the spans of one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.semconv.names import AGENT_NAME, DISCOVERY, INFERENCE, OUTCOME, PHASE, REPLAY_OF, RUN
from pellucid_exporters.local.bodies import storable
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.stored.rows import FAULTS, PART_OF, status_of
from pellucid_exporters.stored.run_facts import answer_of, caller_of, name_of, question_of, tags_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping

    from pellucid_exporters.local.records import SpanRecord

PARTS: Final = ("model", "tool", "hub", "tag")
"""Kinds of the parts of a run by which runs are searched."""

_KNOWN: Final = "SELECT key, trace_id FROM runs WHERE run_id = ?"
_UPDATE: Final = """
UPDATE runs SET
    start = coalesce(:root, start), last = max(last, :last), spans = spans + :spans,
    iterations = max(iterations, :iterations), parent_run_id = coalesce(:parent_run_id, parent_run_id),
    agent = coalesce(:agent, agent), ended = coalesce(:ended, ended), outcome = coalesce(:outcome, outcome),
    error_type = coalesce(:error_type, error_type), error = coalesce(:error, error),
    input_tokens = coalesce(:input_tokens, input_tokens), output_tokens = coalesce(:output_tokens, output_tokens),
    cost = coalesce(:cost, cost), replay_of = coalesce(:replay_of, replay_of),
    question = coalesce(:asked, question, :question), answer = coalesce(:answer, answer),
    user = coalesce(user, :user), tenant = coalesce(tenant, :tenant),
    conversation = coalesce(conversation, :conversation), version = coalesce(version, :version),
    faults = faults + :faults, used_input = used_input + :used_input, used_output = used_output + :used_output,
    used_cost = used_cost + :used_cost, used_cached = used_cached + :used_cached
WHERE key = :key
"""


@dataclass(slots=True)
class RunChange:
    """Additions of a transaction to a run.

    Attributes:
        faults: Number of boundaries that failed.
        usage: Tokens of input and output, US dollars, and tokens of input from a cache of model calls that have ended.
        responses: Ids of the answers of models.
        asked: Attributes of the first model call with recorded messages.
        discovery: Attributes of the first discovery with a recorded input.
    """

    run_id: str
    trace_id: bytes
    start: int
    last: int
    spans: int = 0
    iterations: int = 0
    parent_run_id: str | None = None
    agent: object = None
    replay_of: object = None
    root: SpanRecord | None = None
    parts: set[tuple[str, Any]] = field(default_factory=set)
    faults: int = 0
    usage: list[float] = field(default_factory=lambda: [0, 0, 0.0, 0])
    responses: list[str] = field(default_factory=list)
    asked: Mapping[str, Any] | None = None
    discovery: Mapping[str, Any] | None = None

    def add(self, record: SpanRecord) -> None:
        """Add a span, or a start."""
        start, duration = record.start, record.duration
        last = start
        if duration is not None:
            self.spans += 1
            last += duration
        if last > self.last:  # noqa: PLR1730  (`max` takes much longer, and this is done for each span)
            self.last = last
        if start < self.start:  # noqa: PLR1730
            self.start = start
        if record.is_own:
            self._add_boundary(record)

    def _add_boundary(self, record: SpanRecord) -> None:
        iteration, facts = record.iteration, record.facts
        if iteration is not None and iteration > self.iterations:
            self.iterations = iteration
        phase = facts[PHASE]
        if self.agent is None:
            self.agent = facts.get(AGENT_NAME)
        if self.replay_of is None:
            self.replay_of = facts.get(REPLAY_OF)
        if phase == RUN:
            self.root = record
            self.parent_run_id = self.parent_run_id or record.parent_run_id
            self.parts.update(("tag", tag) for tag in tags_of(facts))
            return
        has_ended = record.duration is not None
        if has_ended and isinstance(outcome := facts.get(OUTCOME), str) and outcome in FAULTS:
            self.faults += 1
        if phase in PART_OF:
            kind, name = PART_OF[phase]
            self.parts.add((kind, facts.get(name)))
        if phase == INFERENCE:
            self._add_call(facts, has_ended=has_ended)
        elif phase == DISCOVERY and self.discovery is None and semconv.INPUT in facts:
            self.discovery = facts

    def _add_call(self, facts: Mapping[str, Any], *, has_ended: bool) -> None:
        """Keep what the row needs of a model call."""
        if self.asked is None and semconv.INPUT_MESSAGES in facts:
            self.asked = facts
        if has_ended:
            if response := _text(facts.get(semconv.RESPONSE_ID)):
                self.responses.append(response)
            usage = self.usage
            usage[0] += _count(facts.get(semconv.USAGE_INPUT_TOKENS)) or 0
            usage[1] += _count(facts.get(semconv.USAGE_OUTPUT_TOKENS)) or 0
            usage[2] += _number(facts.get(semconv.COST_USD)) or 0
            usage[3] += _count(facts.get(semconv.USAGE_CACHE_READ_INPUT_TOKENS)) or 0

    def storable_parts(self) -> Iterator[tuple[str, str]]:
        """Yield the models, tools and hubs that the run used, and its tags."""
        for kind, value in self.parts:
            if name := _text(value):
                yield kind, name

    def write(self, connection: sqlite3.Connection, process: int) -> tuple[int, bytes]:
        """Write the row; return its key, and the trace of the run."""
        root = self.root
        facts: Any = root.facts if root is not None else {}
        has_ended = root is not None and root.duration is not None
        asked = question_of(facts)
        user, tenant = caller_of(self.discovery) if self.discovery is not None else (None, None)
        row = {
            "run_id": self.run_id,
            "trace_id": self.trace_id,
            "parent_run_id": self.parent_run_id,
            "agent": _text(self.agent),
            "process": process,
            "start": root.start if root is not None else self.start,
            "last": self.last,
            "ended": root.start + (root.duration or 0) if root is not None and has_ended else None,
            "outcome": _text(status_of(facts)) if has_ended else None,
            "error_type": _text(facts.get(semconv.ERROR_TYPE)),
            "error": _text(root.error) if root is not None else None,
            "iterations": max(self.iterations, _count(facts.get(semconv.ITERATIONS)) or 0),
            "spans": self.spans,
            "input_tokens": _count(facts.get(semconv.USAGE_INPUT_TOKENS)),
            "output_tokens": _count(facts.get(semconv.USAGE_OUTPUT_TOKENS)),
            "cost": _number(facts.get(semconv.COST_USD)),
            "replay_of": _text(self.replay_of),
            "question": asked or (question_of(self.asked) if self.asked is not None else None),
            "answer": answer_of(facts),
            "user": user,
            "tenant": tenant,
            "conversation": name_of(facts.get(semconv.CONVERSATION_ID)),
            "version": name_of(facts.get(semconv.AGENT_VERSION)),
            "faults": self.faults,
            "used_input": min(self.usage[0], LARGEST),
            "used_output": min(self.usage[1], LARGEST),
            "used_cost": self.usage[2],
            "used_cached": min(self.usage[3], LARGEST),
        }
        known = connection.execute(_KNOWN, (self.run_id,)).fetchone()
        if known is None:
            given = {column: value for column, value in row.items() if value is not None}  # fewer than half of them
            key = connection.execute(_insert(tuple(given)), [*given.values()]).lastrowid
            assert key is not None  # just inserted
            return key, self.trace_id
        key, trace_id = known
        start = root.start if root is not None else None
        connection.execute(_UPDATE, {**row, "root": start, "asked": asked, "key": key})
        return key, trace_id


def changes_of(records: Iterable[SpanRecord]) -> dict[str, RunChange]:
    """Return what spans and starts add to their runs."""
    changes: dict[str, RunChange] = {}
    for record in records:
        if not record.run_id:
            continue
        change = changes.get(record.run_id)
        if change is None:
            change = changes[record.run_id] = RunChange(record.run_id, record.trace_id, record.start, record.start)
        change.add(record)
    return changes


@lru_cache(maxsize=64)
def _insert(columns: tuple[str, ...]) -> str:
    return f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _text(value: object) -> str | None:
    return storable(value) if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
