from __future__ import annotations

import os

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from fidelity.scripts import Script, Stage, scripts
from pellucid.replay import replay
from pellucid_exporters.testing import capture
from support.tapes import recording, tapes_of


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(script=scripts.filter(lambda script: script.capture is None))
def test_a_replay_is_the_recorded_run(backend: str, script: Script) -> None:
    """Runs of any shape, ended in any way and recorded with the default capture, replay with equal digests."""
    with recording() as (telemetry, listings):
        stage = Stage(script, telemetry)
        anyio.run(stage.play, backend=backend)
    for tape in tapes_of(telemetry, listings, "outer"):
        with capture() as replayed:
            agent = Stage(script, replayed).agents()[0 if "outer-0" in tape.spans[0].name else -1]
            outcome = anyio.run(replay, agent, tape, backend=backend)
        assert outcome.divergence is None, str(outcome.divergence)
        assert not replayed.metrics
