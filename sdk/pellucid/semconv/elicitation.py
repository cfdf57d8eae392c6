"""Names of questions that MCP servers ask a person; a program without them does not load them."""

from __future__ import annotations

from typing import Final

ELICITATION_ANSWERED: Final = "elicitation.answered"
"""Event of the span of the call."""

ELICITATION_MODE: Final = "pellucid.elicitation.mode"
ELICITATION_ACTION: Final = "pellucid.elicitation.action"
