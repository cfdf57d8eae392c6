"""Runs in a notebook, executed by a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.processes import PATIENCE

SETUP = """
import threading
import anyio
from pellucid import Agent, ToolCall, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import Console, configure
from pellucid_exporters.console import notebook

notebook.REDRAW = 0.01
telemetry = configure("shop", console=True)
gate = threading.Event()


@tool
async def look(what: str) -> str:
    '''Look.'''
    await anyio.to_thread.run_sync(gate.wait, 60)
    return "<img src=x onerror=alert(1)> costs $1 or $2"


def agent(name):
    call = ToolCall("look", {"what": "<b>hats</b>\\u202e"})
    return Agent(name, model=ScriptedModel(call, "Here it is."), tools=[look])
"""
WATCHED = """
from IPython import get_ipython

publisher = get_ipython().display_pub
publish, bundles = publisher.publish, []


def watch(data, *arguments, **options):
    bundles.append((options.get("update"), data["text/html"]))
    if "look" in data["text/html"] and len(bundles) > 3:
        gate.set()
    publish(data, *arguments, **options)


publisher.publish = watch
answer = (await agent("<script>alert(1)</script>").run("Look.")).output
publisher.publish = publish
print(answer, [update for update, _ in bundles][:2], "execute_tool" in bundles[-2][1], "details" in bundles[-2][1])
"""
TWO = """
async with anyio.create_task_group() as tasks:
    tasks.start_soon(agent("first").run, "x")
    tasks.start_soon(agent("second").run, "x")
agent("third").run_sync("x")
"""
PLAIN = """
telemetry.shutdown()
telemetry = configure("shop", console=Console(live=False, content=False))
await agent("quiet").run("x")
telemetry.shutdown()
for thread in threading.enumerate():
    if thread.name == "pellucid-notebook":
        thread.join(60)
"no updates go on" if "pellucid-notebook" not in {thread.name for thread in threading.enumerate()} else "they do"
"""


RESULT = """
await agent("resulting").run("x")
"""

DOCS = Path(__file__).parents[2] / "docs" / "exporters" / "console.md"


def execute(folder: Path, *cells: str) -> list[list[dict[str, Any]]]:
    """Execute the cells of a notebook, and return the outputs of each."""
    new: Any = nbformat.v4  # comes without types
    notebook = new.new_notebook(cells=[new.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def documents(outputs: list[dict[str, Any]]) -> list[str]:
    """Return the HTML of the outputs of a cell that are shown at its end."""
    return [output["data"]["text/html"] for output in outputs if output["output_type"] == "display_data"]


def test_a_notebook_shows_each_run_in_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is updated in place while its run is in progress, and ends with input and output; branches fold."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    documented = re.findall(r"^```ipython\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    cells = (SETUP, WATCHED, TWO, PLAIN, RESULT, "\n".join(documented))
    _, watched, two, plain, result, of_docs = execute(tmp_path, *cells)
    said = "".join(output.get("text", "") for output in watched)
    assert said == "Here it is. [False, True] True False\n"
    (shown,) = documents(watched)
    assert "invoke_agent &lt;script&gt;" in shown
    assert not re.search(r"<(?!/?(?:div|span|details|summary)\b)", shown)
    assert shown.count("<details>") > 3
    assert "&lt;img src=x onerror=alert(1)&gt; costs $1 or $2" in shown
    assert "\u202e" not in shown
    assert "mathjax_ignore" in shown
    names = [re.findall(r"invoke_agent (\w+)", document) for document in documents(two)]
    assert names == [["first"], ["second"], ["third"]]
    (quiet,) = documents(plain)
    assert "<details>" not in quiet
    assert quiet.count("<details open>") == quiet.count("</details>") == 1
    folded = quiet.partition("<summary")[2]
    assert folded.index("invoke_agent quiet") < folded.index("</summary>") < folded.index("execute_tool look")
    assert plain[-1]["data"]["text/plain"] == "'no updates go on'"
    lines = result[-1]["data"]["text/plain"].splitlines()
    assert lines[0].startswith("RunResult completed (stop), run ")
    assert lines[1:] == [
        "2 iterations, 4 messages, input tokens unknown, output tokens unknown",
        "output: 'Here it is.'",
    ]
    (hello,) = documents(of_docs)
    assert "invoke_agent support" in hello
