"""See through your agents: every discovery, compose, LLM call and dispatch is one OpenTelemetry span.

Names are imported at their first use, each with what it needs.
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.version import __version__

if TYPE_CHECKING:
    from pellucid.agent import Agent
    from pellucid.approvals import ApprovalRequest, Decision, ExternalRequest, ExternalResult
    from pellucid.budgets import Budget
    from pellucid.compaction import Context
    from pellucid.configured import configured_tools
    from pellucid.context import CancelToken, DiscoveryContext, Identity, Limits, ToolContext, propagate
    from pellucid.errors import (
        ConfigError,
        DiscoveryError,
        ErrorKind,
        ModelError,
        OutputError,
        PellucidError,
        PermissionDenied,
        RunCancelled,
        RunTimeout,
        ToolError,
    )
    from pellucid.messages import (
        BlobPart,
        FilePart,
        Message,
        ReasoningPart,
        TextPart,
        ToolCall,
        ToolDefinition,
        ToolResult,
        UriPart,
        Usage,
        dump_messages,
        load_messages,
    )
    from pellucid.models import FallbackModel, Model, ModelDelta, ModelRequest, ModelResponse
    from pellucid.options import AgentOptions, RunOptions
    from pellucid.providers import (
        DiscoveryProvider,
        Readiness,
        Skill,
        ToolHub,
        ToolProvider,
        ToolRegistry,
        combined,
        gated_tools,
        skill_scoped_tools,
        static_tools,
    )
    from pellucid.reliability import Reliability
    from pellucid.run.outcomes import RunResult
    from pellucid.run.stream import RunStream
    from pellucid.scores import score
    from pellucid.selection import PermissionRequest, Policy, Verdict
    from pellucid.standalone import observe
    from pellucid.telemetry import CapturePolicy, Redactor, TelemetryOptions
    from pellucid.tools import Builtin, Hub, Mcp, ProviderTool, Tool, ToolSource, tool

    Telemetry: TypeAlias = TelemetryOptions

    # Names that moved: type checkers know them, and say that they are not exported from here.
    from pellucid.approvals import Claims, ExternalCall, FileClaims, MemoryClaims  # noqa: F401
    from pellucid.configured import configured_tools as external_tools  # noqa: F401
    from pellucid.errors import (  # noqa: F401
        AlreadyResumed,
        CheckpointError,
        CircuitOpen,
        DiscoveryBackoff,
        DiscoveryTimeout,
        InvalidCatalog,
        ModelTimeout,
        PolicyHalt,
        ReliabilityFailFast,
        ToolNameCollision,
    )
    from pellucid.messages import ProviderToolDefinition, ServerToolCall, ServerToolResult  # noqa: F401
    from pellucid.models import OutputSchema, Price, PriceTable, Settings  # noqa: F401
    from pellucid.options import ResumeOptions  # noqa: F401
    from pellucid.providers import ExplainContext, HubState  # noqa: F401
    from pellucid.reliability import (  # noqa: F401
        CircuitBreaker,
        Rule,
        Situation,
        continue_,
        fail_fast,
        fallback,
        last_known_catalog,
        ok,
        retry,
        retry_other,
    )
    from pellucid.selection import Explanation  # noqa: F401
    from pellucid.standalone import ObservedProvider  # noqa: F401
    from pellucid.telemetry import DEFAULT_REDACTORS  # noqa: F401

__all__ = [
    "Agent",
    "AgentOptions",
    "ApprovalRequest",
    "BlobPart",
    "Budget",
    "Builtin",
    "CancelToken",
    "CapturePolicy",
    "ConfigError",
    "Context",
    "Decision",
    "DiscoveryContext",
    "DiscoveryError",
    "DiscoveryProvider",
    "ErrorKind",
    "ExternalRequest",
    "ExternalResult",
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
    "ProviderTool",
    "Readiness",
    "ReasoningPart",
    "Redactor",
    "Reliability",
    "RunCancelled",
    "RunOptions",
    "RunResult",
    "RunStream",
    "RunTimeout",
    "Skill",
    "TelemetryOptions",
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
    "configured_tools",
    "dump_messages",
    "gated_tools",
    "load_messages",
    "observe",
    "propagate",
    "score",
    "skill_scoped_tools",
    "static_tools",
    "tool",
]

_HOMES = {
    "agent": ("Agent",),
    "approvals": ("ApprovalRequest", "Decision", "ExternalRequest", "ExternalResult"),
    "budgets": ("Budget",),
    "compaction": ("Context",),
    "configured": ("configured_tools",),
    "context": ("CancelToken", "DiscoveryContext", "Identity", "Limits", "ToolContext", "propagate"),
    "errors": (
        "ConfigError", "DiscoveryError", "ErrorKind", "ModelError", "OutputError", "PellucidError", "PermissionDenied",
        "RunCancelled", "RunTimeout", "ToolError",
    ),
    "messages": (
        "BlobPart", "FilePart", "Message", "ReasoningPart", "TextPart", "ToolCall", "ToolDefinition", "ToolResult",
        "UriPart", "Usage", "dump_messages", "load_messages",
    ),
    "models": ("FallbackModel", "Model", "ModelDelta", "ModelRequest", "ModelResponse"),
    "standalone": ("observe",),
    "options": ("AgentOptions", "RunOptions"),
    "providers": (
        "DiscoveryProvider", "Readiness", "Skill", "ToolHub", "ToolProvider", "ToolRegistry", "combined",
        "gated_tools", "skill_scoped_tools", "static_tools",
    ),
    "reliability": ("Reliability",),
    "run.outcomes": ("RunResult",),
    "run.stream": ("RunStream",),
    "scores.record": ("score",),
    "selection": ("PermissionRequest", "Policy", "Verdict"),
    "telemetry": ("CapturePolicy", "Redactor", "TelemetryOptions"),
    "tools": ("Builtin", "Hub", "Mcp", "ProviderTool", "Tool", "ToolSource", "tool"),
}  # fmt: skip
"""Modules and the names that they define."""

_MOVED = {
    "approvals": ("Claims", "ExternalCall", "FileClaims", "MemoryClaims"),
    "errors": (
        "AlreadyResumed", "CheckpointError", "CircuitOpen", "DiscoveryBackoff", "DiscoveryTimeout", "InvalidCatalog",
        "ModelTimeout", "PolicyHalt", "ReliabilityFailFast", "ToolNameCollision",
    ),
    "messages": ("ProviderToolDefinition", "ServerToolCall", "ServerToolResult"),
    "models": ("OutputSchema", "Price", "PriceTable", "Settings"),
    "options": ("ResumeOptions",),
    "standalone": ("ObservedProvider",),
    "providers": ("ExplainContext", "HubState"),
    "reliability": (
        "CircuitBreaker", "Rule", "Situation", "continue_", "fail_fast", "fallback", "last_known_catalog", "ok",
        "retry", "retry_other",
    ),
    "selection": ("Explanation",),
    "telemetry": ("DEFAULT_REDACTORS",),
}  # fmt: skip
"""Modules to import names from that this one used to export."""

_MODULES = (
    "approvals", "context", "errors", "events", "messages", "models", "offer", "options", "providers", "reliability",
    "run", "selection", "semconv", "telemetry", "tools", "types",
)  # fmt: skip
"""Modules that `import pellucid` makes available as attributes."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(__name__, _HOMES)
        | {module: partial(import_module, f"{__name__}.{module}") for module in _MODULES},
        deprecated={name: (f"{__name__}.{home}", name) for home, names in _MOVED.items() for name in names}
        | {"Telemetry": (__name__, "TelemetryOptions"), "external_tools": (__name__, "configured_tools")},
    )
    __dir__ = module_dir(__name__)
