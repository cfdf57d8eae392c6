"""Replay: recorded runs as the model, the providers and the tools of another run; see README.md beside this file."""

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
