"""Replay: recorded runs as the model, the providers and the tools of another run; see README.md beside this file.

Names are imported at their first use: pytest loads the plugin of this package in every session.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import Recording
    from pellucid_replay.parts import parts_of
    from pellucid_replay.replaying import Replay, replay, replay_sync
    from pellucid_replay.session import Divergence, ReplayDiverged
    from pellucid_replay.tape import Tape, TapedSpan, TapeError

__all__ = [
    "Divergence",
    "Recording",
    "Replay",
    "ReplayDiverged",
    "Tape",
    "TapeError",
    "TapedSpan",
    "parts_of",
    "replay",
    "replay_sync",
]

_HOMES = {
    "parts": ("parts_of",),
    "replaying": ("Replay", "replay", "replay_sync"),
    "session": ("Divergence", "ReplayDiverged"),
    "tape": ("Tape", "TapedSpan", "TapeError"),
}
"""Modules and the names that they define."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__, lazy=load_within(__name__, _HOMES) | load_from({"Recording": "pellucid_exporters.stored.reader"})
    )
    __dir__ = module_dir(__name__)
