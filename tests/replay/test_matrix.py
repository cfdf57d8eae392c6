from __future__ import annotations

import os
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from fidelity import scripts, test_durable_matrix
from pellucid import semconv
from pellucid.durable import open_store
from pellucid_exporters.testing import capture
from pellucid_replay import replay
from support.runs import within
from support.tapes import recording, tapes_of

FEW = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    print_blob=True,
)
TIMED = frozenset({"background", "expires", "sub_agent"})
"""Tools whose results depend on when other things happen within the same milliseconds, if there are several."""


def is_kept(script: scripts.Script, backend: str) -> bool:
    """Return whether a script has the default capture, and one outcome however busy the machine is."""
    if script.capture is not None or script.ending not in ("nothing", "token"):
        return False
    if backend == "trio" and script.most_calls is not None:
        return False  # trio starts concurrent calls in any order, and the limit depends on it
    return sum(call in TIMED for step in script.steps for call in step) <= 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_is_the_recorded_run(backend: str) -> None:
    """Runs of any shape, ended in any way and recorded with the default capture, replay with equal digests."""

    @FEW
    @given(script=scripts.scripts.filter(lambda script: is_kept(script, backend)))
    def check(script: scripts.Script) -> None:
        with recording() as (telemetry, listings):
            anyio.run(scripts.Stage(script, telemetry).play, backend=backend)
        for tape in tapes_of(telemetry, listings, "outer"):
            with capture() as replayed:
                agents = {agent.name: agent for agent in scripts.Stage(script, replayed).agents()}
                name = next(span.get(semconv.AGENT_NAME) for span in tape.spans if span.run_id == tape.run_id)
                outcome = anyio.run(lambda: within(replay(agents[name], tape)), backend=backend)  # noqa: B023
            outcome.check()

    check()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_durable_run_is_replayed_across_its_passes(backend: str) -> None:
    """Passes that waited, or whose worker was stopped, replay as one run with equal digests."""

    @FEW
    @given(script=test_durable_matrix.scripts)
    def check(script: test_durable_matrix.Script) -> None:
        stages: list[test_durable_matrix.Stage] = []

        async def play() -> None:
            async with open_store(f"sqlite:///{folder}/runs.db") as store:
                stages.append(test_durable_matrix.Stage(script, store))
                await stages[0].play()

        with recording() as (telemetry, listings), TemporaryDirectory() as folder:
            anyio.run(play, backend=backend)
        for tape in tapes_of(telemetry, listings):
            with capture():
                anyio.run(lambda: within(replay(stages[0].agent, tape)), backend=backend).check()  # noqa: B023

    check()
