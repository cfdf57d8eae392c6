"""Feedback on the page of a run: thumbs, and cases for a set."""

from pellucid_exporters.viewer.feedback.parts import Feedback

__all__ = ["Feedback"]
