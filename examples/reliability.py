"""A hub is down and a model is busy: the run still answers, and the tree shows the retries and fallbacks."""

from __future__ import annotations

import sys

from pellucid import Agent, DiscoveryContext, ModelError, Reliability, Tool, ToolCall, tool
from pellucid.reliability import Rule, fallback, last_known_catalog, retry
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.console import Console

ATTEMPTS = 3


@tool
async def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 4 NOK"


class Shop:
    """A hub that answers once and then goes down."""

    id = "shop"
    asked = 0

    async def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Return the tools on the first call; raise on later ones."""
        self.asked += 1
        if self.asked > 1:
            raise ConnectionError("the shop's hub is down")
        return [price]


rules = Reliability(
    [
        Rule(
            when=lambda s: s.error_kind == "rate_limited" and s.attempt < ATTEMPTS,
            then=retry(backoff=0.05),
            kind="busy",
        ),
        Rule(when=lambda s: s.operation == "discovery" and s.error, then=fallback(last_known_catalog), kind="degraded"),
    ]
)
busy = ModelError("scripted", "too many requests", error_kind="rate_limited", status=429, retry_after=0.05)
model = ScriptedModel(ToolCall("price", {"item": "apples"}), busy, "Apples cost 4 NOK.")
telemetry = configure("reliability-example", console=Console(stream=sys.stdout))
agent = Agent("buyer", model=model, providers=[Shop()], reliability=rules)
agent.on("reliability.*", lambda event: print(f"{event.name}: {event}", file=sys.stderr))
print(agent.run_sync("What do apples cost?").output)
telemetry.shutdown()
