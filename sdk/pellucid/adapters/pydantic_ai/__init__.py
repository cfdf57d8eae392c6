"""pydantic-ai: a provider as a toolset of its agents, and a toolset of its as a hub."""

from pellucid.adapters.pydantic_ai.hub import PydanticAIHub
from pellucid.adapters.pydantic_ai.toolset import PellucidToolset

__all__ = ["PellucidToolset", "PydanticAIHub"]
