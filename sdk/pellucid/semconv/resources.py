"""Names of MCP's resources and prompts; a program without them does not load them."""

from __future__ import annotations

from typing import Final

RESOURCE_URI: Final = "mcp.resource.uri"
PROMPT_NAME: Final = "gen_ai.prompt.name"
