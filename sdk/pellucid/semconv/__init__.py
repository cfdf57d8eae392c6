"""Every name that Pellucid emits: spans, attributes, metrics, buckets.

Dashboards, alert rules, exporters and tests import from here; nothing else spells a name out.
`gen_ai.*`, `mcp.*`, `openai.*`, `error.*`, `server.*`, `http.*`, `url.*` are the OpenTelemetry conventions' own (GenAI
and MCP, release 1.41 with names that were agreed on since, development status); what those lack lives under
`pellucid.*`.
No published schema has all of these names, so there is no schema URL.
"""

from pellucid.semconv.metrics import *  # noqa: F403
from pellucid.semconv.names import *  # noqa: F403
from pellucid.semconv.newest import *  # noqa: F403
