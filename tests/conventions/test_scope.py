"""Instrumentation scopes of spans, metrics and log records, as a collector gets them."""

from __future__ import annotations

import pytest

import pellucid
from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp
from support.otlp_receiver import LOGS, METRICS, TRACES, otlp_receiver


@pytest.mark.parametrize(
    ("signal", "resources", "scopes"),
    [
        (TRACES, "resource_spans", "scope_spans"),
        (METRICS, "resource_metrics", "scope_metrics"),
        (LOGS, "resource_logs", "scope_logs"),
    ],
    ids=["traces", "metrics", "logs"],
)
def test_each_signal_names_its_scope_with_its_version(signal: str, resources: str, scopes: str) -> None:
    """The scope of each signal has the name `pellucid`, the version of the package and no schema."""
    with otlp_receiver("http/protobuf") as receiver:
        telemetry = configure("shop", otlp=Otlp(endpoint=receiver.endpoint), set_global=False)
        try:
            Agent("a", model=ScriptedModel("hi"), telemetry=telemetry).run_sync("hi")
        finally:
            telemetry.shutdown()
    found = {
        (scope.scope.name, scope.scope.version, scope.schema_url)
        for sent, request in receiver.requests
        if sent == signal
        for resource in getattr(request, resources)
        for scope in getattr(resource, scopes)
    }
    assert found == {("pellucid", pellucid.__version__, "")}
