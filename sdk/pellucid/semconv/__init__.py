"""Every name that Pellucid emits: spans, attributes, metrics, buckets.

Dashboards, alert rules, exporters and tests import from here; nothing else spells a name out.
`gen_ai.*`, `mcp.*`, `openai.*`, `error.*`, `server.*`, `http.*`, `url.*` are the OpenTelemetry conventions' own (GenAI
and MCP, release 1.41 with names that were agreed on since, development status); what those lack lives under
`pellucid.*`.
No published schema has all of these names, so there is no schema URL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pellucid.semconv.metrics import *  # noqa: F403
from pellucid.semconv.names import *  # noqa: F403

if TYPE_CHECKING:
    from pellucid.semconv.compaction import *  # noqa: F403
    from pellucid.semconv.durable import *  # noqa: F403
    from pellucid.semconv.newest import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Return a name of the modules that are loaded when one of their names is used."""
        if name.isupper():
            for module in ("compaction", "durable", "newest"):
                namespace = vars(import_module(f"{__name__}.{module}"))
                if name in namespace:
                    return globals().setdefault(name, namespace[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
