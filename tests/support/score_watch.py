"""`pellucid score watch --listen` in a process of its own, and the scores that it has given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pellucid_exporters import StoreReader
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM: Final = """
import os, sys
from argparse import ArgumentParser
from pellucid.scores import Score
from pellucid_commands.scoring import arrivals
from pellucid_commands.scoring.command import COMMAND

def asked(input, tools, scored):
    return Score(name="asked", value=len(tools), explanation=f"{input} in {scored.trace_id}", by="test")

arrivals.QUIET = float(os.environ["QUIET"])
parser = ArgumentParser()
COMMAND.add_arguments(parser)
sys.exit(COMMAND.run(parser.parse_args()))
"""


@contextmanager
def watching(path: Path, *options: str, quiet: str = "0.5") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a process of its own; give it and the URL at which it listens."""
    arguments = ("watch", "--scorer", "__main__:asked", "--store", str(path), "--listen", "127.0.0.1:0", *options)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "QUIET": quiet},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        introduction = process.stderr.readline()
        found = re.search(r"arrives at (http://127\.0\.0\.1:\d+) by OTLP, \S+ s after the last span", introduction)
        assert found is not None, introduction + process.stderr.read()
        yield process, found[1]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def scores(path: Path) -> list[tuple[str, Any]]:
    """Return the scores of a store, each with the run that it is of."""
    reader = StoreReader(path)
    return sorted(
        (row.agent, (score.value, score.explanation))
        for row in reader.runs()
        for score in reader.scores(row.run_id)
        if score.trace_id == row.trace_id
    )
