"""Generator of the shipped files: `python -m pellucid_dashboards.generate`, called by `make dashboards`."""

from __future__ import annotations

from pellucid_dashboards.grafana import write_dashboards
from pellucid_dashboards.rules import write_rules

if __name__ == "__main__":
    write_dashboards()
    write_rules()
