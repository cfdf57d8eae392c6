"""Names of experiments, and how their runs are known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_exporters.stored.rows import EXPERIMENTS

if TYPE_CHECKING:
    from pellucid_exporters.stored.rows import RunRow

_NAME: Final = re.compile(r"[\w.-]{1,100}", re.ASCII)


def checked_name(name: str) -> str:
    """Return the name of an experiment, which is that of a file, too.

    Raises:
        ConfigError: it cannot be one.
    """
    if _NAME.fullmatch(name) is None or name.startswith("."):
        raise ConfigError(f"{name!r:.200} is no name of an experiment; use 1 to 100 letters, digits, '.', '_' and '-'")
    return name


def conversation_of(name: str) -> str:
    """Return the id of the conversation of the runs of an experiment, by which pages and commands find them."""
    return f"{EXPERIMENTS}{name}"


def is_of_experiment(row: RunRow) -> bool:
    """Return whether a run belongs to an experiment."""
    return (row.conversation or "").startswith(EXPERIMENTS)
