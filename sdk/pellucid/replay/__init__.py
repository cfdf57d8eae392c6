"""Replay: recorded runs as the model, the providers and the tools of another run; see README.md beside this file."""

from pellucid.replay.parts import parts_of
from pellucid.replay.recordings import Recording
from pellucid.replay.replaying import Replay, replay, replay_sync
from pellucid.replay.session import Divergence, ReplayDiverged
from pellucid.replay.tape import Tape, TapedSpan, TapeError

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
