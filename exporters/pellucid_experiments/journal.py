"""The journal of an experiment: a file in JSON Lines with each trial that has ended, from which it is resumed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from pellucid.errors import ConfigError
from pellucid.types import JSONObject
from pellucid_experiments.trials import Trial, trial_of

if sys.platform != "win32":
    import fcntl

FORMAT: Final = "pellucid.experiment"
VERSION: Final = 1


class ExperimentError(ConfigError):
    """A journal cannot be used; the text names the file and the remedy."""


class Journal:
    """The journal of a running experiment. Its file is readable by its owner only: it has answers.

    Attributes:
        trials: Trials that have ended, in the order of their ends.
    """

    def __init__(self, path: Path, file: int, trials: list[Trial]) -> None:
        self.trials = trials
        self._path = path
        self._file = file

    @classmethod
    def open(cls, path: Path, plan: Mapping[str, Any], *, resume: bool) -> Self:
        """Create the journal of a new experiment, or continue that of one that was stopped.

        Args:
            path: The file.
            plan: Contents of the experiment; a resumed one must have the same.
            resume: Whether to continue.

        Raises:
            ExperimentError: there is one already, or none to continue, or it is of another plan, or in use.
        """
        head = {"format": FORMAT, "version": VERSION, **plan}
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_APPEND | (0 if resume else os.O_CREAT | os.O_EXCL)
            file = os.open(path, flags, 0o600)
        except FileExistsError:
            raise ExperimentError(f"{path}: this experiment exists; resume it, or give another name") from None
        except FileNotFoundError:
            raise ExperimentError(f"{path}: there is no experiment to resume; start it without that") from None
        except OSError as error:
            raise ExperimentError(f"{path}: the journal cannot be opened ({error.strerror})") from None
        try:
            _lock(file, path)
            if not resume:
                journal = cls(path, file, [])
                journal._write(head)
                return journal
            known, trials, size = _read(path)
            os.ftruncate(file, size)  # a line that a kill has cut
        except BaseException:
            os.close(file)
            raise
        for name, value in plan.items():
            if known.get(name) != value:
                os.close(file)
                raise ExperimentError(
                    f"{path}: the experiment was started with other {name}: {known.get(name)!r:.200} and not "
                    f"{value!r:.200}; resume it with the same, or give another name"
                )
        return cls(path, file, trials)

    def add(self, trial: Trial) -> None:
        """Write a trial, which then outlives this process and the machine.

        Raises:
            ExperimentError: it cannot be written.
        """
        self._write(trial.to_dict())
        self.trials.append(trial)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: JSONObject) -> None:
        try:
            left = f"{json.dumps(line)}\n".encode()
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            raise ExperimentError(f"{self._path}: the journal cannot be written ({error.strerror})") from None


def read_journal(path: Path) -> tuple[JSONObject, Sequence[Trial]]:
    """Return the plan and the trials of a journal.

    Raises:
        ExperimentError: it cannot be read, or is none.
    """
    head, trials, _ = _read(path)
    return head, trials


def _read(path: Path) -> tuple[JSONObject, list[Trial], int]:
    """Return the plan, the trials, and the size of what is whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExperimentError(f"{path}: the journal cannot be read ({error.strerror})") from None
    whole = content[: content.rfind(b"\n") + 1]
    try:
        head, *lines = [json.loads(line) for line in whole.splitlines()]
        if head["format"] == FORMAT and head["version"] <= VERSION:
            return head, [trial_of(line) for line in lines], len(whole)
    except (ValueError, TypeError, KeyError, ConfigError) as error:
        raise ExperimentError(f"{path}: the journal is damaged ({error}); start the experiment again") from error
    raise ExperimentError(f"{path}: this is no experiment, or one of a later version")


def _lock(file: int, path: Path) -> None:
    """Keep other processes from the journal; the lock ends with the process.

    Raises:
        ExperimentError: another process has it.
    """
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExperimentError(f"{path}: another process runs this experiment; wait for it, or end it") from None
