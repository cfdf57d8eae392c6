"""Write all generated files anew: `python -m pellucid_dashboards.generate`."""

from __future__ import annotations

from pellucid_dashboards.rules import write_rules

if __name__ == "__main__":
    write_rules()
