"""Pages that show stored telemetry: hubs, runs, a run, a span, and two runs compared.

Server-rendered HTML and SVG for a reader on the same machine; `create_viewer_app` returns the ASGI application.
"""

from pellucid_exporters.viewer.app import create_viewer_app

__all__ = ["create_viewer_app"]
