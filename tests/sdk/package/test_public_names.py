"""Names that applications import: each stays, or warns with what to import in its place."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pellucid

if TYPE_CHECKING:
    from pellucid import Telemetry

RECORDED = json.loads((Path(__file__).parents[2] / "public_names.json").read_text(encoding="utf-8"))

PUBLIC: dict[str, list[str]] = {}
"""Public names by the module to import them from, as they are recorded."""

for path in RECORDED["names of Python"]:
    module, _, name = path.rpartition(".")
    PUBLIC.setdefault(module, []).append(name)

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
    "pellucid.standalone": ["ObservedProvider"],
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
    "pellucid.selection": ["Explanation"],
    "pellucid.telemetry": ["DEFAULT_REDACTORS"],
}
"""Names that `pellucid` exported before, by the module that has them now."""

CONFIGURED = ["FACTORIES", "Factory", "ToolOptions"]
DURABLE = [
    *("CallTokens", "Callbacks", "Completion", "Conversation", "Delivery", "DurableRuns", "LiveEvents", "RunDelta"),
    *("RunEvent", "RunEventPage", "RunState", "StreamMode", "WorkQueue", "verify_callback"),
]
REPLAY = [
    *("Divergence", "Recording", "Replay", "ReplayDiverged", "Tape", "TapeError", "TapedSpan", "parts_of", "replay"),
    "replay_sync",
]
CAPTURED = ["Captured", "CapturedSpan", "Exemplar", "Point", "capture", "check_telemetry"]
SELECTION = ["Explanation", "PermissionRequest", "Policy", "Verdict"]

DEPRECATED = [
    *(("pellucid", name, f"from {module} import {name}") for module, names in MOVED.items() for name in names),
    ("pellucid", "Telemetry", "from pellucid import TelemetryOptions"),
    ("pellucid", "external_tools", "from pellucid import configured_tools"),
    *(("pellucid.external", name, f"from pellucid.configured import {name}") for name in CONFIGURED),
    *(("pellucid.offer", name, f"from pellucid.selection import {name}") for name in SELECTION),
    *(("pellucid.durable_runs", name, f"from pellucid.durable import {name}") for name in DURABLE),
    *(("pellucid.replay", name, f"from pellucid_replay import {name}") for name in REPLAY),
    ("pellucid.nats", "NATSQueue", "from pellucid.durable import NATSQueue"),
    ("pellucid.nats", "StreamLimits", "from pellucid.durable import StreamLimits"),
    ("pellucid.external", "ExternalTools", "from pellucid.configured import ConfiguredTools"),
    ("pellucid.external", "external_tools", "from pellucid import configured_tools"),
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
    *(("pellucid.testing", name, f"from pellucid_exporters.testing import {name}") for name in CAPTURED),
    ("pellucid_instrumentation", "Hub", "from pellucid_instrumentation import ObservedHub"),
]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_exported(module: str) -> None:
    """Without a warning, and also by `__all__`, if the module has one."""
    exported = import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [name for name in PUBLIC[module] if not hasattr(exported, name)] == []
    assert [name for name in PUBLIC[module] if name not in getattr(exported, "__all__", PUBLIC[module])] == []


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


def test_the_old_name_of_a_room_needs_no_import() -> None:
    """`import pellucid` made `pellucid.offer` an attribute, and still does."""
    code = "import pellucid; pellucid.offer.Explanation"
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], check=True)


@pytest.mark.parametrize("module", PUBLIC)
def test_unknown_names_are_refused(module: str) -> None:
    """As by any module."""
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        import_module(module).nothing  # noqa: B018


def test_every_name_of_pellucid_is_recorded() -> None:
    """The record has what `from pellucid import *` imports, and nothing else."""
    assert sorted(PUBLIC["pellucid"]) == sorted(pellucid.__all__)
