"""Options that make no sense are usage errors of every command."""

from __future__ import annotations

import pytest

from pellucid.cli import main

NONSENSE = """
demo --port banana
demo --repeat nan
demo durable --workers 0
doctor --otlp banana
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
