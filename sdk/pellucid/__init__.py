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
    from pellucid.approvals import (
        ApprovalRequest,
        Claims,
        Decision,
        ExternalRequest,
        ExternalResult,
        FileClaims,
        MemoryClaims,
    )
    from pellucid.context import (
        CancelToken,
        DiscoveryContext,
        ExternalCall,
        Identity,
        Limits,
        ToolContext,
        propagate,
    )
    from pellucid.errors import (
        AlreadyResumed,
        CheckpointError,
        CircuitOpen,
        ConfigError,
        DiscoveryBackoff,
        DiscoveryError,
        DiscoveryTimeout,
        ErrorKind,
        InvalidCatalog,
        ModelError,
        ModelTimeout,
        OutputError,
        PellucidError,
        PermissionDenied,
        PolicyHalt,
        ReliabilityFailFast,
        RunCancelled,
        RunTimeout,
        ToolError,
        ToolNameCollision,
    )
    from pellucid.external import external_tools
    from pellucid.messages import (
        BlobPart,
        FilePart,
        Message,
        ProviderToolDefinition,
        ReasoningPart,
        ServerToolCall,
        ServerToolResult,
        TextPart,
        ToolCall,
        ToolDefinition,
        ToolResult,
        UriPart,
        Usage,
        dump_messages,
        load_messages,
    )
    from pellucid.models import (
        FallbackModel,
        Model,
        ModelDelta,
        ModelRequest,
        ModelResponse,
        OutputSchema,
        Price,
        PriceTable,
        Settings,
    )
    from pellucid.observed import ObservedProvider, observe
    from pellucid.offer import Explanation, PermissionRequest, Policy, Verdict
    from pellucid.options import AgentOptions, ResumeOptions, RunOptions
    from pellucid.providers import (
        DiscoveryProvider,
        ExplainContext,
        HubState,
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
    from pellucid.reliability import (
        CircuitBreaker,
        Reliability,
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
    from pellucid.run.outcomes import RunResult
    from pellucid.run.stream import RunStream
    from pellucid.telemetry import DEFAULT_REDACTORS, CapturePolicy, Redactor, TelemetryOptions
    from pellucid.tools import Builtin, Hub, Mcp, ProviderTool, Tool, ToolSource, tool

    Telemetry: TypeAlias = TelemetryOptions

__all__ = [
    "DEFAULT_REDACTORS",
    "Agent",
    "AgentOptions",
    "AlreadyResumed",
    "ApprovalRequest",
    "BlobPart",
    "Builtin",
    "CancelToken",
    "CapturePolicy",
    "CheckpointError",
    "CircuitBreaker",
    "CircuitOpen",
    "Claims",
    "ConfigError",
    "Decision",
    "DiscoveryBackoff",
    "DiscoveryContext",
    "DiscoveryError",
    "DiscoveryProvider",
    "DiscoveryTimeout",
    "ErrorKind",
    "ExplainContext",
    "Explanation",
    "ExternalCall",
    "ExternalRequest",
    "ExternalResult",
    "FallbackModel",
    "FileClaims",
    "FilePart",
    "Hub",
    "HubState",
    "Identity",
    "InvalidCatalog",
    "Limits",
    "Mcp",
    "MemoryClaims",
    "Message",
    "Model",
    "ModelDelta",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "ModelTimeout",
    "ObservedProvider",
    "OutputError",
    "OutputSchema",
    "PellucidError",
    "PermissionDenied",
    "PermissionRequest",
    "Policy",
    "PolicyHalt",
    "Price",
    "PriceTable",
    "ProviderTool",
    "ProviderToolDefinition",
    "Readiness",
    "ReasoningPart",
    "Redactor",
    "Reliability",
    "ReliabilityFailFast",
    "ResumeOptions",
    "Rule",
    "RunCancelled",
    "RunOptions",
    "RunResult",
    "RunStream",
    "RunTimeout",
    "ServerToolCall",
    "ServerToolResult",
    "Settings",
    "Situation",
    "Skill",
    "TelemetryOptions",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolHub",
    "ToolNameCollision",
    "ToolProvider",
    "ToolRegistry",
    "ToolResult",
    "ToolSource",
    "UriPart",
    "Usage",
    "Verdict",
    "__version__",
    "combined",
    "continue_",
    "dump_messages",
    "external_tools",
    "fail_fast",
    "fallback",
    "gated_tools",
    "last_known_catalog",
    "load_messages",
    "observe",
    "ok",
    "propagate",
    "retry",
    "retry_other",
    "skill_scoped_tools",
    "static_tools",
    "tool",
]

_HOMES = {
    "agent": ("Agent",),
    "approvals": (
        "ApprovalRequest", "Claims", "Decision", "ExternalRequest", "ExternalResult", "FileClaims", "MemoryClaims",
    ),
    "context": ("CancelToken", "DiscoveryContext", "ExternalCall", "Identity", "Limits", "ToolContext", "propagate"),
    "errors": (
        "AlreadyResumed", "CheckpointError", "CircuitOpen", "ConfigError", "DiscoveryBackoff", "DiscoveryError",
        "DiscoveryTimeout", "ErrorKind", "InvalidCatalog", "ModelError", "ModelTimeout", "OutputError",
        "PellucidError", "PermissionDenied", "PolicyHalt", "ReliabilityFailFast", "RunCancelled", "RunTimeout",
        "ToolError", "ToolNameCollision",
    ),
    "external": ("external_tools",),
    "messages": (
        "BlobPart", "FilePart", "Message", "ProviderToolDefinition", "ReasoningPart", "ServerToolCall",
        "ServerToolResult", "TextPart", "ToolCall", "ToolDefinition", "ToolResult", "UriPart", "Usage",
        "dump_messages", "load_messages",
    ),
    "models": (
        "FallbackModel", "Model", "ModelDelta", "ModelRequest", "ModelResponse", "OutputSchema", "Price",
        "PriceTable", "Settings",
    ),
    "observed": ("ObservedProvider", "observe"),
    "offer": ("Explanation", "PermissionRequest", "Policy", "Verdict"),
    "options": ("AgentOptions", "ResumeOptions", "RunOptions"),
    "providers": (
        "DiscoveryProvider", "ExplainContext", "HubState", "Readiness", "Skill", "ToolHub", "ToolProvider",
        "ToolRegistry", "combined", "gated_tools", "skill_scoped_tools", "static_tools",
    ),
    "reliability": (
        "CircuitBreaker", "Reliability", "Rule", "Situation", "continue_", "fail_fast", "fallback",
        "last_known_catalog", "ok", "retry", "retry_other",
    ),
    "run.outcomes": ("RunResult",),
    "run.stream": ("RunStream",),
    "telemetry": ("DEFAULT_REDACTORS", "CapturePolicy", "Redactor", "TelemetryOptions"),
    "tools": ("Builtin", "Hub", "Mcp", "ProviderTool", "Tool", "ToolSource", "tool"),
}  # fmt: skip
"""Modules and the names that they define."""

_MODULES = (
    "approvals", "context", "errors", "events", "messages", "models", "offer", "options", "providers", "reliability",
    "run", "semconv", "telemetry", "tools", "types",
)  # fmt: skip
"""Modules that `import pellucid` makes available as attributes."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(__name__, _HOMES)
        | {module: partial(import_module, f"{__name__}.{module}") for module in _MODULES},
        deprecated={"Telemetry": (__name__, "TelemetryOptions")},
    )
    __dir__ = module_dir(__name__)
