"""Adapter for OpenAI and compatible servers. Needs the extra `openai`."""

from pellucid.models.openai.model import OpenAIModel

__all__ = ["OpenAIModel"]
