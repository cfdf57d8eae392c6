"""Prometheus rules: recording rules and alerts."""

from pellucid_dashboards.rules.groups import all_groups
from pellucid_dashboards.rules.model import Alert, Group, Record
from pellucid_dashboards.rules.render import RULES_FILE, render, write_rules
from pellucid_exporters.alerting.thresholds import Thresholds

__all__ = ["RULES_FILE", "Alert", "Group", "Record", "Thresholds", "all_groups", "render", "write_rules"]
