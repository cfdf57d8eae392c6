"""Measure how thin the runtime is: what a first run loads, what a call executes, and what users see.

Run it with `make measure`. The numbers are counts, the same on each machine with the same Python; `BUDGETS` holds them.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import FrameType

ROOT: Final = Path(__file__).parents[2]
SDK: Final = ROOT / "sdk"
DEMO: Final = ROOT / "exporters" / "pellucid_commands" / "demo"

BUDGETS: Final = {
    "code lines that a first run loads": 8_200,
    "modules that it loads": 90,
    "line events of a tool call": 200,
    "line events of an iteration": 632,
    "changes of module of a tool call": 40,
    "modules that a tool call enters": 10,
    "attributes of Run": 20,
    "public names of pellucid": 72,
    "packages that pip installs": 28,
    "import cycles": 0,
    "code lines of the demo": 1_240,
}
"""The most that a change may lead to, by name."""


@dataclass
class Trace:
    """Lines of Pellucid that were executed.

    Attributes:
        files: The module of each line.
        at_dispatch: Positions at which the dispatch of a message's calls began and ended.
        at_tool: Positions at which the tool was entered.
    """

    files: list[str] = field(default_factory=list)
    at_dispatch: list[int] = field(default_factory=list)
    at_tool: list[int] = field(default_factory=list)

    def enter(self, frame: FrameType, _event: str, _value: Any) -> Any:
        """Trace the functions of Pellucid."""
        return self.line if is_counted(frame.f_code.co_filename) else None

    def line(self, frame: FrameType, event: str, _value: Any) -> Any:
        """Note a line."""
        if event == "line":
            self.files.append(frame.f_code.co_filename.rpartition("/sdk/")[2])
        return self.line


def is_counted(file: str) -> bool:
    """Return whether a module belongs to the runtime: to Pellucid, but not to its doubles of models."""
    return "/sdk/pellucid/" in file and "/sdk/pellucid/testing/" not in file


async def traced() -> tuple[Trace, Any]:
    """Run an agent with a tool for some iterations; return what its last ones executed, and the run."""
    from pellucid import Agent, ToolCall, tool
    from pellucid.testing import ScriptedModel

    loop: Any = import_module("pellucid.run.loop")
    trace = Trace()
    runs: list[Any] = []

    @tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        trace.at_tool.append(len(trace.files))
        return a + b

    dispatch = loop.dispatch

    async def noted(run: Any, *args: Any) -> Any:
        runs.append(run)
        trace.at_dispatch.append(len(trace.files))
        try:
            return await dispatch(run, *args)
        finally:
            trace.at_dispatch.append(len(trace.files))

    loop.dispatch = noted
    agent = Agent("measured", model=ScriptedModel(*[ToolCall("add", {"a": 1, "b": 2})] * 5, "done"), tools=[add])
    sys.settrace(trace.enter)
    try:
        await agent.run("go")
    finally:
        sys.settrace(None)
        loop.dispatch = dispatch
    return trace, runs[0]


def executed() -> Iterator[tuple[str, int]]:
    """Yield the counts of a tool call and of an iteration, of the last of several, and of the run's attributes."""
    trace, run = asyncio.run(traced())
    call = trace.files[trace.at_dispatch[-2] : trace.at_dispatch[-1]]
    yield "line events of a tool call", len(call)
    yield "line events of an iteration", trace.at_tool[-1] - trace.at_tool[-2]
    yield "changes of module of a tool call", sum(here != there for here, there in pairwise(call))
    yield "modules that a tool call enters", len(set(call))
    yield "attributes of Run", len([name for name in dir(run) if not name.startswith("_")])


FIRST_RUN: Final = """
import json, sys
from pellucid import Agent, ToolCall, tool
from pellucid.testing import ScriptedModel

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

agent = Agent("first", model=ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "done"), tools=[add])
assert agent.run_sync("go").output == "done"
modules = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "pellucid"}
print(json.dumps(modules))
"""


def first_run() -> dict[str, Path]:
    """Return the modules that a first run loads, in a process of its own, and their files."""
    command = [sys.executable, "-c", FIRST_RUN]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: Path(file) for name, file in json.loads(output.splitlines()[-1]).items() if is_counted(file)}


def weight(files: Collection[Path]) -> Iterator[tuple[str, int]]:
    """Yield the code lines and the number of the modules of a first run."""
    yield "code lines that a first run loads", sum(code_lines(file.read_text(encoding="utf-8")) for file in files)
    yield "modules that it loads", len(files)


def demo() -> int:
    """Return the code lines of `pellucid demo`, which grows with whatever there is to show."""
    return sum(code_lines(file.read_text(encoding="utf-8")) for file in DEMO.rglob("*.py"))


def code_lines(source: str) -> int:
    """Return the number of lines of a module without blank lines, comments and docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(source)
    strings = {
        line
        for node in ast.walk(tree)
        for part in (node.body if isinstance(node, documented) else ())
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in strings for number, line in lines
    )


def installed() -> int:
    """Return the number of packages that `pip install pellucid` brings on this platform."""
    pending, found = ["pellucid"], set[str]()
    for name in pending:  # which grows
        if (name := re.sub(r"[-_.]+", "-", name).lower()) in found:
            continue
        found.add(name)
        for requirement in metadata.requires(name) or ():
            text, _, marker = requirement.partition(";")
            if _applies(marker):
                pending.append(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0])
    return len(found) - 1


def _applies(marker: str) -> bool:
    from packaging.markers import Marker

    return not marker or Marker(marker).evaluate({"extra": ""})


def cycles(root: Path) -> list[list[str]]:
    """Return the groups of modules that import each other when they are loaded; a package's face is a module of it."""
    names = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for file in root.rglob("*.py")
    }
    graph = {name: set(_imports(file, names)) - {name} for name, file in names.items()}
    return [group for group in _components(graph) if len(group) > 1]


def _imports(file: Path, names: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a module imports when it is loaded."""
    for node in _at_import(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in inner if name in names)
            if node.module in names and not all(name in names for name in inner):
                yield node.module


def _at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are executed when a module is loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_import(node)


def _components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {name: frozenset(other for other in reached[name] if name in reached[other]) | {name} for name in graph}
    return [sorted(group) for group in dict.fromkeys(groups.values())]


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        for other in graph[pending.pop()] - found:
            found.add(other)
            pending.append(other)
    return found


def measures() -> dict[str, int]:
    """Return all numbers."""
    import pellucid

    return {
        **dict(weight(first_run().values())),
        **dict(executed()),
        "public names of pellucid": len(pellucid.__all__),
        "packages that pip installs": installed(),
        "import cycles": len(cycles(SDK)),
        "code lines of the demo": demo(),
    }


def main() -> None:
    """Print the numbers beside their budgets."""
    print(f"{'':42}{'now':>8}{'budget':>8}")
    for name, number in measures().items():
        print(f"{name:42}{number:>8,}{BUDGETS[name]:>8,}{'  over' if number > BUDGETS[name] else ''}")
    for group in cycles(SDK):
        print("cycle:", ", ".join(group))


if __name__ == "__main__":
    main()
