"""Pages of durable runs: a list, what waits for results and people, and the timeline of a run."""

from pellucid_exporters.viewer.durable.parts import DurablePages
from pellucid_exporters.viewer.durable.routes import routes
from pellucid_exporters.viewer.sessions import Actions

__all__ = ["Actions", "DurablePages", "routes"]
