"""Scores in the local store: of which run, the newest, filters, several stores, exports, age and older versions."""

from __future__ import annotations

import json
import sqlite3
import time
from argparse import ArgumentParser
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Message, ModelResponse, PellucidError, ToolCall
from pellucid.errors import ConfigError
from pellucid.scores import Scored, score, scores_of
from pellucid.scores.evidence import evidence_of
from pellucid.scores.record import record
from pellucid.testing import ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import Local, StoreReader
from pellucid_exporters.local import schema
from pellucid_exporters.stored.many import ManyReader
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.stored.scores import ScoreCondition
from support.local_store import eventually, storing
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid import RunResult
    from pellucid_exporters import Telemetry

pytestmark = pytest.mark.anyio

BEFORE = schema.MIGRATIONS[:6]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store."""
    return tmp_path / "store.db"


async def ask(telemetry: Telemetry, response_id: str | None = None, version: str = "1") -> RunResult[Any]:
    """Run an agent."""
    answer = ModelResponse(message=Message("assistant", "done"), id=response_id)
    agent = Agent("support", version=version, model=ScriptedModel(answer, name="small"), telemetry=telemetry)
    return await agent.run("go")


async def test_a_run_has_its_scores(path: Path) -> None:
    """A run has all of its scores, with who gave them, when and why, and the newest of each name in the list."""
    why = "the price is that of the catalogue, " * 20
    with storing(path) as telemetry:
        result = await ask(telemetry)
        score(result, "correct", value=0, by="price_check", telemetry=telemetry)
        score(result, "correct", value=1, label="pass", explanation=why, by="ann", telemetry=telemetry)
        score(Scored(run_id=result.run_id, model="other"), "thumb", label="l" * 128, telemetry=telemetry)
    reader = StoreReader(path)
    first, second, thumb = reader.scores(result.run_id)
    assert (first.name, first.value, first.by, first.explanation) == ("correct", 0, "price_check", None)
    assert (second.value, second.label, second.explanation) == (1, "pass", why)
    assert (second.trace_id, second.span_id) == (result.trace_id, result.span_id)
    assert (second.agent, second.version, second.model) == ("support", "1", "small")
    assert (thumb.value, thumb.label, thumb.model) == (None, "l" * 128, "other")
    assert (thumb.trace_id, thumb.span_id) == (None, None)
    assert abs(second.time - time.time_ns()) < 3600 * 10**9
    (row,) = reader.runs()
    assert [(each.name, each.value) for each in row.scores] == [("correct", 1), ("thumb", None)]
    assert reader.run(result.run_id) == row
    assert reader.rows([result.run_id]) == [row]


@pytest.mark.parametrize("more", ["", ", and more" * 50])
async def test_nothing_is_hidden_behind_a_nul(more: str, path: Path, tmp_path: Path) -> None:
    """Names, labels and explanations with NUL, which ends a text in SQLite, show it as U+FFFD, also after an import."""
    why = f"fine\0 but this is hidden{more}"
    with storing(path) as telemetry:
        result = await ask(telemetry)
        score(result, "to\0ne", label="g\0ood", explanation=why, by="a\0nn", telemetry=telemetry)
    lines = tmp_path / "telemetry.jsonl"
    assert store("export", "--store", str(path), "--output", str(lines)) == 0
    lines.write_text(lines.read_text().replace("\N{REPLACEMENT CHARACTER}", "\\u0000"))
    assert store("import", "--store", str(tmp_path / "other.db"), str(lines)) == 0
    for reader in (StoreReader(path), StoreReader(tmp_path / "other.db")):
        (found,) = reader.scores(result.run_id)
        mark = "\N{REPLACEMENT CHARACTER}"
        assert (found.name, found.label, found.by) == (f"to{mark}ne", f"g{mark}ood", f"a{mark}nn")
        assert found.explanation == why.replace("\0", mark)


async def test_a_score_belongs_to_its_run_by_any_id(path: Path) -> None:
    """A score belongs to the run with its response's id or trace; of nested runs, to the one with its span."""
    with storing(path) as telemetry:
        inner = Agent("inner", model=ScriptedModel("found"), telemetry=telemetry)
        outer = Agent(
            "outer",
            model=ScriptedModel(ToolCall("inner", {"input": "x"}), "done"),
            tools=[inner.as_tool("inner", "Ask.")],
            telemetry=telemetry,
        )
        result = await outer.run("go")
        other = await ask(telemetry, "resp-7")
        assert telemetry.flush(PATIENCE)
        reader = StoreReader(path)
        nested = next(run for run in reader.trace(result.trace_id) if run.agent == "inner")
        (chat,) = [span for span in reader.spans(nested.run_id) if span.phase == "inference"]
        score(Scored(response_id="resp-7"), "by_answer", value=1, telemetry=telemetry)
        score(Scored(trace_id=result.trace_id), "by_trace", value=1, telemetry=telemetry)
        score(Scored(trace_id=result.trace_id, span_id=chat.span_id), "by_span", value=1, telemetry=telemetry)
        score(Scored(response_id="unknown"), "nowhere", value=1, telemetry=telemetry)
    scored = (other.run_id, result.run_id, nested.run_id, "")
    assert [[each.name for each in reader.scores(run)] for run in scored] == [
        ["by_answer"],
        ["by_trace"],
        ["by_span"],
        ["nowhere"],
    ]


@pytest.mark.parametrize("by", ["run_id", "trace_id", "response_id"])
async def test_a_score_may_come_before_its_run(by: str, path: Path, tmp_path: Path) -> None:
    """A score may be stored before its run."""
    with storing(tmp_path / "first.db") as telemetry:
        result = await ask(telemetry, "resp-7")
    with storing(path) as telemetry:
        ids = {"run_id": result.run_id, "trace_id": result.trace_id, "response_id": "resp-7"}
        score(Scored(**{by: ids[by]}), "correct", value=1, telemetry=telemetry)
    assert store("import", "--store", str(path), str(tmp_path / "first.db")) == 0
    reader = StoreReader(path)
    assert [each.name for each in reader.scores(result.run_id)] == ["correct"]
    assert [match.run_id for match in reader.search(RunFilter(score=ScoreCondition(name="correct"))).matches] == [
        result.run_id
    ]


def store(*arguments: str) -> int:
    """Run `pellucid store`."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(arguments))


async def test_runs_are_searched_by_their_newest_scores(path: Path) -> None:
    """Runs are searched by value, label or presence of their newest score; earlier scores do not count."""
    with storing(path) as telemetry:
        good, bad, mended, silent = [(await ask(telemetry)).run_id for _ in range(4)]
        for run_id, value, label in ((good, 1, "up"), (bad, 0.25, "down"), (mended, 0, "down"), (mended, 0.75, "up")):
            score(Scored(run_id=run_id), "correct", value=value, label=label, telemetry=telemetry)
    reader = StoreReader(path)
    names = {good: "good", bad: "bad", mended: "mended", silent: "silent"}
    for text, expected in {
        "correct<0.5": {"bad"},
        "correct >= 0.75": {"good", "mended"},
        "correct=1": {"good"},
        "correct!=1": {"bad", "mended"},
        "correct=down": {"bad"},
        "correct!=down": {"good", "mended"},
        "correct": {"good", "bad", "mended"},
        "other": set(),
    }.items():
        condition = ScoreCondition.of(text)
        assert {names[match.run_id] for match in reader.search(RunFilter(score=condition)).matches} == expected, text
        assert {names[run.run_id] for run in reader.runs(score=condition)} == expected, text
    assert reader.names(10)["score"] == ["correct"]


@pytest.mark.parametrize("text", ["", "<1", "correct<", "correct<low", "correct<-1", "correct>nan"])
def test_a_condition_says_what_is_wrong(text: str) -> None:
    """A wrong condition raises ConfigError that says how to write one."""
    with pytest.raises(ConfigError, match=r"correct<0\.5|compared with a number"):
        ScoreCondition.of(text)


async def test_means_are_by_version_and_time(path: Path) -> None:
    """Means are by version and time, over the scores given in the window; a mean needs enough values."""
    with storing(path) as telemetry:
        for version, values in (("1", [1] * 12), ("2", [0, 1])):
            for value in values:
                score(await ask(telemetry, version=version), "correct", value=value, telemetry=telemetry)
    reader = StoreReader(path)
    found = reader.score_groups("version", 0, 2**62)
    assert [(group.score, group.name, group.number, group.mean) for group in found] == [
        ("correct", "support 1", 12, 1.0),
        ("correct", "support 2", 2, None),
    ]
    (whole,) = reader.score_groups("model", 0, 2**62, within=("version", "support 2"))
    assert (whole.name, whole.number, whole.total) == ("small", 2, 1.0)
    assert reader.score_groups(None, 0, 1) == []
    assert [group.number for group in ManyReader([reader, reader]).score_groups(None, 0, 2**62, step=2**61)] == [28]


async def test_several_stores_are_one(path: Path, tmp_path: Path) -> None:
    """Scores in a store of their own are read together with the runs of another store."""
    with storing(path) as telemetry:
        result = await ask(telemetry)
        score(result, "correct", value=0, telemetry=telemetry)
    with storing(tmp_path / "scores.db") as telemetry:
        score(Scored(run_id=result.run_id), "correct", value=1, telemetry=telemetry)
        score(Scored(run_id=result.run_id), "thumb", value=1, telemetry=telemetry)
    reader = ManyReader([StoreReader(path), StoreReader(tmp_path / "scores.db")])
    (row,) = reader.runs()
    assert [(each.name, each.value) for each in row.scores] == [("correct", 1), ("thumb", 1)]
    assert reader.run(result.run_id) == row
    assert reader.rows([result.run_id]) == reader.trace(result.trace_id) == [row]
    assert [each.value for each in reader.scores(result.run_id)] == [0, 1, 1]
    assert reader.score_values("correct", [result.run_id])[result.run_id][1] == 1


async def test_exports_have_scores(path: Path, tmp_path: Path) -> None:
    """Exports have scores of runs, also of runs that the store does not have; a second import changes nothing."""
    lines = tmp_path / "telemetry.jsonl"
    with storing(path) as telemetry:
        result = await ask(telemetry)
        score(result, "correct", value=1, explanation="x" * 500, by="ann", telemetry=telemetry)
        score(Scored(run_id="elsewhere"), "thumb", label="up", telemetry=telemetry)
    assert store("export", "--store", str(path), "--output", str(lines)) == 0
    assert "scores" not in json.loads(lines.read_text().splitlines()[0])
    for _ in range(2):
        assert store("import", "--store", str(tmp_path / "other.db"), str(lines)) == 0
    one, other = StoreReader(path), StoreReader(tmp_path / "other.db")
    for run_id in (result.run_id, "elsewhere"):
        assert other.scores(run_id) == one.scores(run_id) != []


async def test_scores_go_with_their_runs(path: Path) -> None:
    """Scores are deleted with their runs when these are too old."""
    with storing(path) as telemetry:
        score(await ask(telemetry, "resp-7"), "correct", value=1, telemetry=telemetry)
        score(Scored(run_id="unknown"), "correct", value=1, telemetry=telemetry)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE counters SET value = 0 WHERE name = 'retained_at'")
        connection.commit()
    tables = ("scores", "responses", "parts", "part_runs", "events")

    def rows() -> list[int]:
        with closing(sqlite3.connect(path)) as connection:
            return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    assert all(rows())
    with storing(Local(path, max_age=0.001)):
        assert eventually(lambda: not any(rows()))


def test_scores_of_the_version_before_are_found(path: Path) -> None:
    """Scores of the version before are found after a migration, and a writer of that version goes on."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statements in BEFORE:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 6")
        connection.execute(
            "INSERT INTO runs (run_id, trace_id, agent, process, start, last, iterations, spans) "
            "VALUES ('old', x'00', 'shop', 1, 10, 20, 1, 1)"
        )

        def add(number: int, name: str) -> None:
            payload = json.dumps({"score": name, "value": 1.0}).encode()
            row = "(1, 15, 1, ?, 'score.recorded', zeroblob(8), ?)"
            connection.execute(f"INSERT OR REPLACE INTO events VALUES {row}", (number, payload))

        add(1, "before")
        reader = StoreReader(path)
        add(2, "meanwhile")
        assert [(each.name, each.value) for each in reader.scores("old")] == [("before", 1), ("meanwhile", 1)]
        assert [run.run_id for run in reader.runs(score=ScoreCondition(name="before"))] == ["old"]
        assert reader.search(RunFilter(score=ScoreCondition(name="meanwhile"))).matches[0].run_id == "old"


async def test_a_score_without_a_judgement_is_marked(path: Path) -> None:
    """A score without a judgement has an error and no value."""

    def broken() -> float:
        raise PellucidError("no catalogue")

    with storing(path) as telemetry:
        result = await ask(telemetry)
        for each in await scores_of([broken], evidence_of(result)):
            record(evidence_of(result).scored, each, telemetry)
    (found,) = StoreReader(path).scores(result.run_id)
    why = "PellucidError: no catalogue"
    assert (found.value, found.error_type, found.explanation) == (None, "PellucidError", why)
    (group,) = StoreReader(path).score_groups(None, 0, 2**62)
    assert (group.number, group.errors, group.mean) == (0, 1, None)
