"""Experiments: sets of cases, asked again of one or more candidates, and scored; see README.md beside this file."""

from pellucid_experiments.case_files import CaseError, add_cases, load_cases, save_cases

__all__ = ["CaseError", "add_cases", "load_cases", "save_cases"]
