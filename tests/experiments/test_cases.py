"""Sets of cases: files that people review, made from recorded runs, from tables and by hand."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import TYPE_CHECKING

import pytest

from pellucid import Agent, ConfigError, Message
from pellucid.messages import UriPart
from pellucid.scores import Case, Scored, score
from pellucid.testing import ScriptedModel
from pellucid_commands.experiments import cases as command
from pellucid_experiments import CaseError, add_cases, load_cases, save_cases
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry

TEXT = Case(
    id="price", input="What does it cost?\u2028In euros?", expected={"euros": 12}, tags=("shop", "de"), note="n"
)
MESSAGES = Case(
    id="photo",
    input=(
        Message("user", "Look."),
        Message("user", [UriPart(uri="https://example.org/a.png", modality="image")]),
    ),
    source="96c287f9",
)


def call(*arguments: str) -> int:
    """Run `pellucid cases` in this process."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_a_set_reads_as_it_was_written(tmp_path: Path) -> None:
    """Texts, messages, expected values and what is empty; each case is one line, which is what a review shows."""
    path = tmp_path / "sets" / "shop.jsonl"
    save_cases(path, [TEXT, MESSAGES])
    assert load_cases(path) == (TEXT, MESSAGES)
    assert load_cases(path, tags=["de"]) == (TEXT,)
    assert path.read_bytes().count(b"\n") == 2


def test_adding_keeps_the_lines_and_permissions_of_a_set(tmp_path: Path) -> None:
    """A line that a person has written stays as it is; a new file has the permissions of the umask."""
    path = tmp_path / "shop.jsonl"
    by_hand = '{ "id":"a",  "input":"Why?" }\n\n{"input": "How?", "id": "b"}'
    path.write_text(by_hand)
    path.chmod(0o640)
    add_cases(path, [TEXT])
    assert path.read_text("utf-8").startswith(f"{by_hand}\n")
    assert [case.id for case in load_cases(path)] == ["a", "b", "price"]
    assert path.stat().st_mode & 0o777 == 0o640
    before = os.umask(0o022)
    try:
        add_cases(tmp_path / "new.jsonl", [TEXT])
    finally:
        os.umask(before)
    assert (tmp_path / "new.jsonl").stat().st_mode & 0o777 == 0o644
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new.jsonl", "shop.jsonl"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "a", "input": ', "this is no JSON"),
        ('["a"]', "this is no JSON object"),
        ('{"input": "Why?"}', '"id" must be a text of 1 to 128 printable characters, not None'),
        ('{"id": "a\\n", "input": "Why?"}', '"id" must be'),
        ('{"id": "b"}', '"input" must be a text, or a list of messages, not None'),
        ('{"id": "b", "input": ""}', '"input" must be'),
        ('{"id": "b", "input": [{"role": "boss", "parts": []}]}', "the role is not one of"),
        ('{"id": "b", "input": "Why?", "expect": 7}', "line 3: a case has no 'expect'."),
        ("[" * 100_000, "this is no JSON"),
        ('{"id": "b", "input": "Why?", "tags": "shop"}', '"tags" must be a list of texts'),
        ('{"id": "b", "input": "Why?", "source": 7}', '"source" must be a text, not 7'),
        ('{"id": "b", "input": "Why?", "expect": 7}', "Did you mean 'expected'?"),
        ('{"id": "a", "input": "Why?"}', "the case of line 1 has the id 'a', too; give each its own"),
    ],
)
def test_an_error_names_file_line_and_remedy(tmp_path: Path, line: str, said: str) -> None:
    """Of a line that is no case, and of a second case with the same id."""
    path = tmp_path / "shop.jsonl"
    path.write_text(f'{{"id": "a", "input": "Why?"}}\n\n{line}\n')
    with pytest.raises(CaseError) as raised:
        load_cases(path)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert said in str(raised.value)


def test_a_set_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A missing file, a tag that no case has, an id that is taken: nothing is written."""
    path = tmp_path / "shop.jsonl"
    with pytest.raises(CaseError, match="cannot be read"):
        load_cases(path)
    save_cases(path, [TEXT])
    with pytest.raises(CaseError, match="no case has the tag fr; its tags are de, shop"):
        load_cases(path, tags=["fr"])
    for again in ([TEXT], [MESSAGES, MESSAGES], [Case(id="", input="Why?")]):
        with pytest.raises(ConfigError):
            add_cases(path, again)
    assert load_cases(path) == (TEXT,)
    with pytest.raises(CaseError, match="cannot be written"):
        save_cases(path / "below" / "a.jsonl", [TEXT])


SECRET = "sk-ant-api03-" + "a1B2c3D4" * 12


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three runs, two of which have a thumb."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        thumbs(telemetry)
    return path


def thumbs(telemetry: Telemetry) -> None:
    """Answer three questions, of which one was liked, and one was not, after a first thumb up."""
    model = ScriptedModel("It costs 12 euros.", "I do not know.", "Hello.")
    agent = Agent("support", model=model, telemetry=telemetry)
    price, other, _ = (agent.run_sync(text) for text in ("What does it cost?", f"My key is {SECRET}.", "Hello"))
    for run, value in ((price, 1), (other, 1), (other, 0)):
        given = Scored(run_id=run.run_id, trace_id=run.trace_id, span_id=run.span_id)
        score(given, "thumb", value=value, label="up" if value else "down", telemetry=telemetry)


@pytest.mark.parametrize(("wanted", "count"), [("thumb<0.5", 1), ("thumb=down", 1), ("thumb >= 0", 2), ("thumb=1", 1)])
def test_cases_of_runs_that_a_score_marks(
    tmp_path: Path, store: Path, wanted: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest score of a run counts; runs that are in the set are left out the next time."""
    path = tmp_path / "set.jsonl"
    arguments = ("add", "--store", str(store), "--to", str(path), "--score", wanted, "--tag", "thumb")
    assert call(*arguments) == 0
    assert call(*arguments) == 0
    assert len(load_cases(path, tags=["thumb"])) == count
    assert f"{path}: 0 cases added, {count} in all" in capsys.readouterr().out


def test_a_masked_secret_stays_masked(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the case says so."""
    path = tmp_path / "set.jsonl"
    assert call("add", "--store", str(store), "--to", str(path), "--score", "thumb=down", "--expect-answer") == 0
    [case] = load_cases(path)
    assert case.expected == "I do not know."
    assert case.input == "My key is [redacted]."
    assert case.note.startswith("A secret was masked")
    assert case.id == case.source[:12]
    assert f"{case.id}: A secret was masked" in capsys.readouterr().err
    assert SECRET[20:] not in path.read_text()
    assert call("check", str(path), "--replay", str(store)) == 0
    assert "1 of 1 case can be replayed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--score", "<1"], "is no condition"),
        (["--score", "thumb<down"], "a value is compared with a number"),
        ([], "name runs, or give --score"),
        (["nothing"], "there is no run 'nothing'"),
    ],
)
def test_what_names_no_run_is_refused(tmp_path: Path, store: Path, arguments: list[str], said: str) -> None:
    """Nothing is written."""
    with pytest.raises(ConfigError, match=said):
        call("add", "--store", str(store), "--to", str(tmp_path / "set.jsonl"), *arguments)
    assert not (tmp_path / "set.jsonl").exists()


def test_no_run_with_such_a_score(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says so."""
    assert call("add", "--store", str(store), "--to", str(tmp_path / "set.jsonl"), "--score", "thumb>1") == 1
    assert capsys.readouterr().out == "no run has such a score\n"


def test_cases_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a spreadsheet writes it: with a mark at the beginning, quotes, and line breaks in cells."""
    table, path = tmp_path / "questions.csv", tmp_path / "set.jsonl"
    table.write_text('\ufeffquestion,answer\r\n"Why,\nand how?",Because\r\nWhen?,\r\n', "utf-8")
    arguments = ("import", str(table), "--to", str(path), "--input", "question", "--expected", "answer")
    assert call(*arguments, "--tag", "faq") == 0
    assert load_cases(path) == (
        Case(id="questions-1", input="Why,\nand how?", expected="Because", tags=("faq",)),
        Case(id="questions-2", input="When?", tags=("faq",)),
    )
    assert call("list", str(path), "--tag", "faq") == 0
    shown = capsys.readouterr().out
    assert "questions-1" in shown
    assert "Why, and how?" in shown
    with pytest.raises(CaseError, match="there is no column 'reply'; there are question, answer"):
        call("import", str(table), "--to", str(path), "--input", "question", "--expected", "reply")
    table.write_text("question,answer\n,Because\n")
    with pytest.raises(CaseError, match="line 2: the column 'question' is empty"):
        call(*arguments)
