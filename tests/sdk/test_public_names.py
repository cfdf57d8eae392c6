"""Names that applications import: each stays, or warns with what to import in its place."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import pellucid

if TYPE_CHECKING:
    from pellucid import Telemetry

PUBLIC = {
    "pellucid": [
        "Agent",
        "ApprovalRequest",
        "BlobPart",
        "Builtin",
        "CancelToken",
        "CapturePolicy",
        "ConfigError",
        "Decision",
        "DiscoveryContext",
        "DiscoveryError",
        "DiscoveryProvider",
        "ErrorKind",
        "FallbackModel",
        "FilePart",
        "Hub",
        "Identity",
        "Limits",
        "Mcp",
        "Message",
        "Model",
        "ModelDelta",
        "ModelError",
        "ModelRequest",
        "ModelResponse",
        "OutputError",
        "PellucidError",
        "PermissionDenied",
        "PermissionRequest",
        "Policy",
        "ReasoningPart",
        "Redactor",
        "Readiness",
        "Reliability",
        "RunCancelled",
        "RunResult",
        "RunStream",
        "RunTimeout",
        "Skill",
        "TextPart",
        "Tool",
        "ToolCall",
        "ToolContext",
        "ToolDefinition",
        "ToolError",
        "ToolHub",
        "ToolProvider",
        "ToolRegistry",
        "ToolResult",
        "ToolSource",
        "UriPart",
        "Usage",
        "Verdict",
        "__version__",
        "combined",
        "dump_messages",
        "external_tools",
        "gated_tools",
        "load_messages",
        "propagate",
        "skill_scoped_tools",
        "static_tools",
        "tool",
    ],
    "pellucid.models": [
        "AnthropicModel",
        "FallbackModel",
        "GeminiModel",
        "Model",
        "ModelDelta",
        "ModelRequest",
        "ModelResponse",
        "OpenAIModel",
        "OutputSchema",
        "Price",
        "PriceTable",
        "Prices",
        "PublishedPrices",
        "Settings",
        "StreamItem",
    ],
    "pellucid.external": ["FACTORIES", "ExternalTools", "Factory", "ToolOptions", "external_tools"],
    "pellucid.mcp": ["MCPProvider", "Options"],
    "pellucid.testing": [
        "Answer",
        "Answers",
        "Deed",
        "Fails",
        "FakeHub",
        "FunctionModel",
        "Hangs",
        "Job",
        "JobCompletion",
        "JobDelivery",
        "ModelContract",
        "OutsideService",
        "Pieces",
        "ScriptedModel",
        "ScriptedVendor",
        "Step",
    ],
    "pellucid_exporters": [
        "Console",
        "File",
        "MetricsApp",
        "Otlp",
        "Prometheus",
        "PrometheusReader",
        "TailSampling",
        "Telemetry",
        "configure",
    ],
    "pellucid_instrumentation": ["Endpoint", "Hubs", "ObservedHub", "instrument", "uninstrument"],
    "pellucid.durable": [
        "CallKind",
        "CallRecord",
        "CallStatus",
        "Cancellation",
        "Claim",
        "DueRuns",
        "Encoded",
        "EventPage",
        "JournalEntry",
        "Lease",
        "NewCall",
        "PassEnd",
        "PendingCalls",
        "PostgresStore",
        "Recovery",
        "RunRecord",
        "RunStatus",
        "RunStore",
        "RunSummary",
        "SQLiteStore",
        "Settlement",
        "SettlementOutcome",
        "Statistics",
        "StoredEvent",
        "Submission",
        "open_store",
    ],
    "pellucid.durable_runs": [
        "CallTokens",
        "Completion",
        "DurableRuns",
        "RunEvent",
        "RunEventPage",
        "RunState",
    ],
    "pellucid.server": [
        "Authenticate",
        "bearer",
        "create_app",
        "loopback_only",
    ],
}
"""Names that were public before the first of them was deprecated."""

MOVED = {
    "pellucid.approvals": ["Claims", "ExternalCall", "FileClaims", "MemoryClaims"],
    "pellucid.errors": [
        "AlreadyResumed",
        "CheckpointError",
        "CircuitOpen",
        "DiscoveryBackoff",
        "DiscoveryTimeout",
        "InvalidCatalog",
        "ModelTimeout",
        "PolicyHalt",
        "ReliabilityFailFast",
        "ToolNameCollision",
    ],
    "pellucid.messages": ["ProviderToolDefinition", "ServerToolCall", "ServerToolResult"],
    "pellucid.models": ["OutputSchema", "Price", "PriceTable", "Settings"],
    "pellucid.observed": ["ObservedProvider"],
    "pellucid.offer": ["Explanation"],
    "pellucid.providers": ["ExplainContext", "HubState"],
    "pellucid.reliability": [
        "CircuitBreaker",
        "Rule",
        "Situation",
        "continue_",
        "fail_fast",
        "fallback",
        "last_known_catalog",
        "ok",
        "retry",
        "retry_other",
    ],
    "pellucid.telemetry": ["DEFAULT_REDACTORS"],
}
"""Names that `pellucid` exported before, by the module that has them now."""

DEPRECATED = [
    *(("pellucid", name, f"from {module} import {name}") for module, names in MOVED.items() for name in names),
    ("pellucid", "Telemetry", "from pellucid import TelemetryOptions"),
    ("pellucid.telemetry", "Telemetry", "from pellucid.telemetry import TelemetryOptions"),
    ("pellucid.models", "candidates", "from pellucid.models.alternatives import candidates"),
    ("pellucid.models", "closable", "from pellucid.models.base import closable"),
    ("pellucid.models", "falls_back", "from pellucid.models.alternatives import falls_back"),
    ("pellucid.models", "load_prices", "from pellucid.models.prices import load_prices"),
    ("pellucid.models", "require_model", "from pellucid.models.base import require_model"),
    ("pellucid.models", "resolve", "from pellucid.models.names import resolve"),
    ("pellucid.models", "told", "from pellucid.models.alternatives import last_of"),
    ("pellucid.reliability", "Decision", "from pellucid.reliability import Reaction"),
    ("pellucid.testing", "Completion", "from pellucid.testing import JobCompletion"),
    ("pellucid.testing", "Delivery", "from pellucid.testing import JobDelivery"),
    ("pellucid_instrumentation", "Hub", "from pellucid_instrumentation import ObservedHub"),
]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_exported(module: str) -> None:
    """Without a warning, and also by `__all__`."""
    exported = import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [name for name in PUBLIC[module] if not hasattr(exported, name)] == []
    assert [name for name in PUBLIC[module] if name not in exported.__all__] == []


@pytest.mark.parametrize(("module", "name", "remedy"), DEPRECATED)
def test_deprecated_names_warn(module: str, name: str, remedy: str) -> None:
    """The warning is shown where the name is imported, and says what to import instead; `__all__` no longer has it."""
    exported = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"^{module}.{name} is deprecated; use `{remedy}`$") as caught:
        value = getattr(exported, name)
    assert [warning.filename for warning in caught] == [__file__]
    assert name not in exported.__all__
    new: dict[str, object] = {}
    exec(remedy, new)
    assert value is new[remedy.rsplit(maxsplit=1)[-1]]


def test_the_old_name_of_telemetry_options_can_be_imported() -> None:
    """It is the same class, for `isinstance` and annotations; the warning names the line that imports it."""

    def same(options: Telemetry) -> pellucid.TelemetryOptions:
        return options

    code = "\nfrom pellucid import Telemetry, TelemetryOptions\nassert isinstance(TelemetryOptions(), Telemetry)"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], check=True, capture_output=True, text=True)
    assert "<string>:2: DeprecationWarning: pellucid.Telemetry is deprecated" in done.stderr
    assert same(pellucid.TelemetryOptions()) == pellucid.TelemetryOptions()


@pytest.mark.parametrize("module", MOVED)
def test_names_that_moved_are_exported(module: str) -> None:
    """By the module that the warning names."""
    assert [name for name in MOVED[module] if name not in import_module(module).__all__] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_unknown_names_are_refused(module: str) -> None:
    """As by any module."""
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        import_module(module).nothing  # noqa: B018
