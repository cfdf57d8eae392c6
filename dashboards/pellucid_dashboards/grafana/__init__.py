"""Grafana dashboards as code: one module per dashboard, composed of small builders.

`promql` writes queries, `panels` draws them, `assembly` puts them on a dashboard. It needs `grafana-foundation-sdk`,
which is for development only: its output is shipped as JSON.
"""

from pellucid_dashboards.grafana.build import dashboards, write_dashboards

__all__ = ["dashboards", "write_dashboards"]
