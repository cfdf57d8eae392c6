"""Skills: the model loads instructions and tools on demand, and the next iteration has them."""

from pellucid import Agent, Skill, ToolCall, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import Console, configure


@tool
async def refund(order: str) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


refunds = Skill(
    "refunds",
    "How to refund an order.",
    "Refund orders of the last 30 days only. Tell the customer that the money takes three days.",
    tools=[refund],
)
returns = Skill("returns", "How to send something back.", "Send the customer the address of the warehouse.")

telemetry = configure("support", console=Console(live=False))
model = ScriptedModel(
    ToolCall("load_skill", {"skill_id": "refunds"}),
    ToolCall("refund", {"order": "A-17"}),
    "It is refunded; the money takes three days.",
)
agent = Agent("support", model=model, skills=[refunds, returns])
print(agent.run_sync("I want my money back for order A-17.").output)
for number, request in enumerate(model.requests, 1):
    print(f"iteration {number} offered {[each.name for each in request.tools]}")
telemetry.shutdown()
