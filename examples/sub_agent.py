"""An agent as another agent's tool: its run is nested in the call, and its usage is counted once."""

from pellucid import Agent, Message, ModelResponse, ToolCall, Usage
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Tree, capture


def show(branches: list[Tree], indent: str = "") -> None:
    """Print spans as a tree."""
    for name, children in branches:
        print(f"{indent}{name}")
        show(children, f"{indent}  ")


def answer(content: str | list[ToolCall], tokens: int) -> ModelResponse:
    """Return an answer with this number of input tokens."""
    return ModelResponse(message=Message("assistant", content), usage=Usage(input_tokens=tokens, output_tokens=10))


researcher = Agent(
    "researcher",
    model=ScriptedModel(answer("Bergen has 240 days of rain a year.", tokens=700)),
    description="Finds things out. Say what you want to know.",
)
writer = Agent(
    "writer",
    model=ScriptedModel(
        answer([ToolCall("researcher", {"input": "How often does it rain in Bergen?"})], tokens=200),
        answer("Two days out of three, Bergen is wet.", tokens=300),
    ),
    tools=[researcher.as_tool()],
)

with capture() as telemetry:
    result = writer.run_sync("Write a sentence about Bergen.")
print(result.output)
show(telemetry.tree())
print(f"input tokens of both: {result.usage.input_tokens}")
for span in telemetry.spans:
    if span.name.startswith("invoke_agent") and span.attributes:
        print(f"{span.name} says {span.attributes['gen_ai.usage.input_tokens']!r}")
