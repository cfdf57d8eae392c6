"""A lazy registry of 1,000 tools: the model searches for the tool it needs, and is offered only that one."""

from collections.abc import Awaitable, Callable
from itertools import product

from pellucid import Agent, Tool, ToolCall, ToolRegistry
from pellucid.testing import ScriptedModel
from pellucid_exporters import Console, configure

VERBS = ("create", "read", "update", "delete", "list", "search", "archive", "restore", "export", "share")
THINGS = ("invoice", "customer", "order", "ticket", "contract", "shipment", "payment", "employee", "meeting", "report")
SYSTEMS = ("crm", "erp", "helpdesk", "hr", "warehouse", "billing", "calendar", "wiki", "mail", "drive")


def pretending(done: str) -> Callable[[dict[str, str], object], Awaitable[str]]:
    """Return a tool function that only pretends to work."""

    async def run(arguments: dict[str, str], ctx: object) -> str:
        return f"{done}: {arguments['id']}"

    return run


registry = ToolRegistry(registry_mode="lazy")
for verb, thing, system in product(VERBS, THINGS, SYSTEMS):
    name = f"{system}_{verb}_{thing}"
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    what = f"{verb.capitalize()} a {thing} in the {system} system."
    registry.register_mcp(Tool(name=name, description=what, input_schema=schema, run=pretending(what)), system)

telemetry = configure("office", console=Console(live=False))
model = ScriptedModel(
    ToolCall("tool_search", {"query": "archive an invoice in billing"}),
    ToolCall("tool_search", {"name": "billing_archive_invoice"}),
    ToolCall("billing_archive_invoice", {"id": "2026-117"}),
    "Invoice 2026-117 is archived.",
)
agent = Agent("office", model=model, providers=[registry])
agent.on("tools.searched", lambda event: print(f"{event.hits} tools match; the best is {event.names[0]}"))
print(agent.run_sync("Archive invoice 2026-117").output)
offered = ", ".join(tool.name for tool in model.requests[-1].tools)
print(f"{len(registry.names()):,} tools are registered; offered at last: {offered}")
telemetry.shutdown()
