"""Dashboards, Prometheus rules and the configuration around them.

`pellucid dashboards export DIR` and `pellucid rules export` write the files; all names in them come from
`pellucid.semconv`.
"""
