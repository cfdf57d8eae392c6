"""What a team imports to see and to be paged: dashboards, rules, and the configuration around them.

`pellucid dashboards export DIR` and `pellucid rules export` write the files; all names in them come from
`pellucid.semconv`.
"""
