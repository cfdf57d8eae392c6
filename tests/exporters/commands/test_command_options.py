"""Every command of the package: its examples, and options that make no sense."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints, entry_points

import pytest

from pellucid.cli import GROUP, Command, main

NONSENSE = """
demo --port banana
demo --repeat nan
demo durable --workers 0
doctor --otlp banana
export kubernetes out --name Banana
doctor --metrics banana
doctor --prometheus banana
doctor --timeout banana
runs --limit 0
runs --before banana
runs --min-duration inf
runs --outcome banana
top --window 99999999999999999999999999
top --interval inf
store compact --max-age inf
store compact --max-bytes 1
replay RUN --timing inf
serve support:agent --max-connections -1
serve support:agent --concurrency 0
serve support:agent --port 99999
worker support:agent --metrics-port banana
cases add --to set.jsonl --since banana
experiment set.jsonl --agent a:b --scorers c:d --repeat banana
experiment set.jsonl --agent a:b --scorers c:d --jobs 0
experiment set.jsonl --agent a:b --scorers c:d --retries 1000
experiment set.jsonl --agent a:b --scorers c:d --max-cost inf
experiment set.jsonl --agent a:b --scorers c:d --fail-under banana
view --jaeger banana
view --port 99999
alerts relay --prometheus banana
alerts relay --port 99999
rules export --for-scale nan
rules export --set hanging_after=banana
rules export --out .
""".strip().splitlines()


@pytest.mark.parametrize("line", NONSENSE)
def test_nonsense_is_a_usage_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and the last line on stderr names the option or what was given for it."""
    command, *arguments = line.split()
    try:
        code = main([command, *arguments])
    except SystemExit as refused:
        code = int(refused.code or 0)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith("pellucid")
    assert command in last
    assert arguments[-1] in last


IDLE: dict[str, Command] = {
    point.name: replace(point.load(), run=lambda options: 0) for point in entry_points(group=GROUP)
}
"""The commands, which only read their options."""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the idle commands in place of those that work."""
    points = EntryPoints(EntryPoint(name, f"{__name__}:{name}", GROUP) for name in IDLE)
    monkeypatch.setattr("pellucid.cli.entry_points", lambda group: points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: IDLE[self.name])


NESTED = """
alerts relay
cases add
cases check
cases export
cases import
cases list
dashboards export
demo durable
durable callback
durable calls
durable cancel
durable decide
durable doctor
durable drain
durable events
durable list
durable migrate
durable purge
durable retry
durable settle
durable show
durable workers
export kubernetes
mcp serve
rules check
rules export
rules thresholds
store compact
store export
store stats
tools diff
tools lock
""".strip().splitlines()


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", ["", *IDLE, *NESTED])
def test_each_help_has_examples_that_are_true(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Examples begin with the command, and it takes their options; what a shell does with the output is left out."""
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    usage, _, rest = capsys.readouterr().out.partition("\n\n")
    has_nested = any(other.startswith(f"{name} ") for other in NESTED)
    assert usage.endswith("...") is (has_nested or not name)
    examples = rest.partition("\nexamples:\n")[2].strip().splitlines()
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[: 1 + len(name.split())] == ["pellucid", *name.split()]
        assert main(words[1:]) == 0, example
