"""Makes stores as the version of this checkout writes them, for `test_schemas.py`.

`PYTHONPATH=tests .venv/bin/python -m schemas.make` writes `local_<version>.db.gz` and `durable_<version>.db.gz` beside
this file. Do it with the last commit before a schema changes, and add the files to the test.
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from pellucid import Agent, DiscoveryProvider, Message, ModelError, ModelResponse, Tool, ToolCall, Usage
from pellucid.durable import DurableRuns, RunStore, open_store
from pellucid.models import Price, PriceTable
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters import StoreReader, configure

FOLDER: Final = Path(__file__).parent
PRICES: Final = PriceTable(
    {"main-model": Price(input=1.0, output=1.0), "inner-model": Price(input=500.0, output=500.0)}
)


async def answer(arguments: dict[str, Any], ctx: object) -> str:
    """Answer."""
    return "found"


TOOLS: Final = [
    Tool(name=f"tool_{number:02}", description=f"Tool {number}. {'It looks up what is asked. ' * 38}", run=answer)
    for number in range(40)
]
"""More definitions than the default bounds of content let on a span."""

OWED: Final = Tool(name="owed", run=answer, execution="external-dispatch", pending="wait")
PAY: Final = Tool(name="pay", run=answer, needs_approval=True)


def clerk() -> Agent:
    """Return the agent of the durable runs; each waits for an approval and a result."""
    calls = [ToolCall("pay", {"amount": 5}, id="call_pay"), ToolCall("owed", {}, id="call_owed")]

    def act(request: Any) -> Any:
        is_new = request.messages[-1].role == "user"
        return calls if is_new and request.messages[-1].text != "simple" else "done"

    return Agent("clerk", model=FunctionModel(act), tools=[OWED, PAY])


def using(answer: str | ToolCall) -> ModelResponse:
    """Return an answer that used 1,000 tokens."""
    message = Message("assistant", [answer] if isinstance(answer, ToolCall) else answer)
    return ModelResponse(message=message, usage=Usage(input_tokens=900, output_tokens=100))


async def _run_all(path: Path) -> None:
    telemetry = configure("shop", local=path, console=False)
    hub = DiscoveryProvider(FakeHub(TOOLS, latency=0.03), id="catalogue", objective=0.01, ttl=0)
    inner = Agent("inner", model=ScriptedModel(using("inner answer"), name="inner-model"), prices=PRICES)
    steps: list[str | ToolCall] = [ToolCall("tool_01", {"q": "x"}), ToolCall("inner", {"input": "x"}), "outer answer"]
    model = ScriptedModel(*map(using, steps), name="main-model")
    tools = [inner.as_tool("inner", "Ask.")]
    await Agent("main", model=model, tools=tools, providers=[hub], prices=PRICES).run("question of the user")
    broken = DiscoveryProvider(FakeHub(faults=[ConnectionError("the hub is not there")]), id="broken", ttl=0)
    with suppress(Exception):
        await Agent("fails", model=ScriptedModel("x"), providers=[broken]).run("question")
    failure = ModelError("main-model", "overloaded", error_kind="unavailable")
    with suppress(Exception):
        await Agent("model-fails", model=ScriptedModel(failure)).run("question")
    assert telemetry.flush()
    telemetry.shutdown()


async def _be_interrupted(path: Path) -> None:
    telemetry = configure("shop", local=path, console=False)

    class Hanging:
        async def fetch_catalog(self, ctx: object) -> list[Tool]:
            with anyio.fail_after(60):
                while not StoreReader(path).in_flight():  # noqa: ASYNC110  (another process writes it)
                    await anyio.sleep(0.01)
            telemetry.flush()
            os._exit(0)

    provider = DiscoveryProvider(Hanging(), id="hanging", objective=0.5)
    await Agent("interrupted", model=ScriptedModel("x"), providers=[provider]).run("question")


async def _be_durable(store: RunStore) -> None:
    agent = clerk()
    async with store:
        runs = DurableRuns(store, [agent])
        await runs.submit(agent, "simple", run_id="completed")
        await runs.submit(agent, "question", run_id="waiting")
        await runs.work_until_idle()
        await runs.submit(agent, "question", run_id="queued")


def _pack(path: Path, name: str, version_query: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (version,) = connection.execute(version_query).fetchone()
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    (FOLDER / f"{name}_{version}.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def main() -> None:
    """Write both files."""
    if len(sys.argv) > 1:
        anyio.run(_be_interrupted, Path(sys.argv[1]))
        return
    with TemporaryDirectory() as folder:
        local, durable = Path(folder) / "local.db", Path(folder) / "durable.db"
        anyio.run(_run_all, local)
        subprocess.run([sys.executable, "-m", "schemas.make", str(local)], check=True)
        _pack(local, "local", "PRAGMA user_version")
        anyio.run(_be_durable, open_store(f"sqlite:///{durable}"))
        _pack(durable, "durable", "SELECT version FROM schema_version")


if __name__ == "__main__":
    main()
