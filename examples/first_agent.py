"""A first agent: one tool, a scripted model, and the run as a tree in the terminal."""

from pellucid import Agent, ToolCall, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure


@tool
async def forecast(city: str, days: int = 1) -> str:
    """Return the weather forecast.

    Args:
        city: Name of the city, in English.
        days: How many days ahead.
    """
    return f"{city}, in {days} day(s): rain, 8 °C"


telemetry = configure("weather", console=True)
model = ScriptedModel(ToolCall("forecast", {"city": "Bergen"}), "Take an umbrella.")
agent = Agent("weather", model=model, tools=[forecast])
print(agent.run_sync("Will it rain in Bergen tomorrow?").output)
telemetry.shutdown()
