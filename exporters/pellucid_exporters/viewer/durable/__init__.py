"""Pages of durable runs: a list, what waits for results and people, and the timeline of a run."""

from pellucid_exporters.viewer.durable.actions import Actions
from pellucid_exporters.viewer.durable.routes import DurablePages

__all__ = ["Actions", "DurablePages"]
