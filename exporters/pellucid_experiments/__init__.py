"""Experiments: sets of cases, asked again of one or more candidates, and scored; see README.md beside this file.

Names are imported at their first use: pytest loads the plugin of this package in every session.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid_experiments.assertions import assert_scores, assert_scores_sync
    from pellucid_experiments.case_files import CaseError, add_cases, load_cases, save_cases
    from pellucid_experiments.comparing import Change, Comparison, compared, load_report
    from pellucid_experiments.documents import junit_of, markdown_of
    from pellucid_experiments.experimenting import experiment
    from pellucid_experiments.journal import ExperimentError
    from pellucid_experiments.options import ExperimentOptions
    from pellucid_experiments.recorded_cases import case_of_run, cases_of_table
    from pellucid_experiments.report import CaseMean, Report, Summary
    from pellucid_experiments.statistics import Difference, Interval
    from pellucid_experiments.trials import Trial

__all__ = [
    "CaseError",
    "CaseMean",
    "Change",
    "Comparison",
    "Difference",
    "ExperimentError",
    "ExperimentOptions",
    "Interval",
    "Report",
    "Summary",
    "Trial",
    "add_cases",
    "assert_scores",
    "assert_scores_sync",
    "case_of_run",
    "cases_of_table",
    "compared",
    "experiment",
    "junit_of",
    "load_cases",
    "load_report",
    "markdown_of",
    "save_cases",
]

_HOMES = {
    "assertions": ("assert_scores", "assert_scores_sync"),
    "case_files": ("CaseError", "add_cases", "load_cases", "save_cases"),
    "comparing": ("Change", "Comparison", "compared", "load_report"),
    "documents": ("junit_of", "markdown_of"),
    "experimenting": ("experiment",),
    "journal": ("ExperimentError",),
    "options": ("ExperimentOptions",),
    "recorded_cases": ("case_of_run", "cases_of_table"),
    "report": ("CaseMean", "Report", "Summary"),
    "statistics": ("Difference", "Interval"),
    "trials": ("Trial",),
}
"""Modules and the names that they define."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__, lazy=load_within(__name__, _HOMES))
    __dir__ = module_dir(__name__)
