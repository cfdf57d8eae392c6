"""Prometheus templates shared by alerts: numbers that the alert's own expression does not return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.budgets import BUDGET_NAME
from pellucid.semconv.scores import EVALUATION_NAME
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import DECLARED, JOB

if TYPE_CHECKING:
    from collections.abc import Sequence


def value_of(label_name: str) -> str:
    """Return a template of a label's value."""
    return f"{{{{ $labels.{label_name} }}}}"


def queried(expression: str, labels: Sequence[str], shown: str, otherwise: str) -> str:
    """Return a template of a number that is queried when the alert fires.

    Args:
        expression: PromQL, in which each `%s` stands for matchers of the alert's own labels.
        labels: Names of these labels.
        shown: Formatting function of the number, such as `humanizeDuration`.
        otherwise: Text without a result.
    """
    matchers = ",".join(f"{name}=%[{number}]q" for number, name in enumerate(labels, 1))
    values = " ".join(f"$labels.{name}" for name in labels)
    query = expression.replace("%s", matchers)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}{{{{ . | first | value | {shown} }}}}"
        f"{{{{ else }}}}{otherwise}{{{{ end }}}}"
    )


def declared(name: str, otherwise: str = "") -> str:
    """Return a template of what processes have declared about the alert's hub in the last hour, or of another text."""
    provider = label(semconv.PROVIDER_ID)
    query = f'max by ({name}) (last_over_time({DECLARED}{{{name}!="",{JOB}=%q,{provider}=%q}}[1h]))'
    found = f"{{{{ with printf `{query}` $labels.{JOB} $labels.{provider} | query }}}}"
    return f'{found}{{{{ . | first | label "{name}" }}}}{{{{ else }}}}{otherwise}{{{{ end }}}}'


def objective_of(series: str, labels: Sequence[str]) -> str:
    """Return a template of the objective that processes declared in the last hour; a failed scrape keeps it."""
    return queried(f"max(last_over_time({series}{{%s}}[1h]))", labels, "humanizeDuration", "none declared")


def dashboard(uid: str, **variables: str) -> str:
    """Return the path of a dashboard with the service and variables set, each by the name of a label."""
    chosen = {"service": JOB, **variables}
    query = "&".join(f"var-{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in chosen.items())
    return f"/d/{uid}?{query}"


_PAIR: Final = "&{{ $name }}={{ $value | urlquery }}"
LABELS: Final = '{{ range $name, $value := $labels }}{{ if ne $name "__name__" }}' + _PAIR + "{{ end }}{{ end }}"
"""Template of all labels of a series, to continue the query of an address."""

HUB: Final = f"Tool hub {value_of(label(semconv.PROVIDER_ID))} ({value_of(JOB)})"
MODEL: Final = f"Model {value_of(label(semconv.REQUEST_MODEL))} ({value_of(JOB)})"
TOOL: Final = f"Tool {value_of(label(semconv.TOOL_NAME))} ({value_of(JOB)})"
AGENT: Final = f"Agent {value_of(label(semconv.AGENT_NAME))} ({value_of(JOB)})"
SCORER: Final = f"Scorer {value_of(label(EVALUATION_NAME))} ({value_of(JOB)})"
BUDGET: Final = f"Budget {value_of(label(BUDGET_NAME))} ({value_of(JOB)})"
SHARE: Final = "{{ $value | humanizePercentage }}"
DURATION: Final = "{{ $value | humanizeDuration }}"
NUMBER: Final = '{{ $value | printf "%.0f" }}'
