"""The model and the providers of a tape, for an agent of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.errors import ConfigError
from pellucid.models import Model
from pellucid.providers import ToolProvider
from pellucid_replay.passes import passes_of
from pellucid_replay.playback import Playback
from pellucid_replay.rebuilding import rebuilt_setup
from pellucid_replay.session import Session
from pellucid_replay.staging import staged
from pellucid_replay.tape import Tape


def parts_of(tape: Tape) -> tuple[Model, Sequence[ToolProvider]]:
    """Return an ordinary model and ordinary providers that answer from a tape, once, to one run.

    ```python
    model, providers = parts_of(Tape.load(".pellucid/telemetry.db", run_id))
    await Agent("support", model=model, providers=providers, instructions="...").run("Refund order 7.")
    ```

    A request or call that differs from the recorded one fails with `ReplayDiverged` as the cause. Unlike in `replay()`,
    the run is measured, and nothing of the recorded input or of the agent is used.

    Raises:
        TapeError: the tape lacks something, or its run depended on code of its agent.
        ConfigError: the run continued another one, after an approval or a result.
    """
    [first, *others] = passes_of(tape)
    if others:
        raise ConfigError(f"parts_of(): run {tape.run_id} continued another one; use replay()")
    first.check()
    playback = Playback(Session(live=frozenset(), timing=0, on_divergence="raise"), first)
    setup = staged(rebuilt_setup([first]), playback)
    return setup.model, [lister.provider for lister in setup.listers]
