"""Names of what runs of experiments have; a program without experiments does not load them."""

from __future__ import annotations

from typing import Final

EXPERIMENT_NAME: Final = "pellucid.experiment.name"
EXPERIMENT_CANDIDATE: Final = "pellucid.experiment.candidate"
EXPERIMENT_CASE: Final = "pellucid.experiment.case"
EXPERIMENT_REPEAT: Final = "pellucid.experiment.repeat"
