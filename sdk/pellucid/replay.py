"""The old name of `pellucid_replay`, which is above the stores that it reads."""

from pellucid.module_names import module_getattr

__all__: list[str] = []

_NAMES = (
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
)

__getattr__ = module_getattr(__name__, deprecated={name: ("pellucid_replay", name) for name in _NAMES})
