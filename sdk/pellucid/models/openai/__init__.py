"""OpenAI and every server that speaks its protocols; needs the extra `openai`."""

from pellucid.models.openai.model import OpenAIModel

__all__ = ["OpenAIModel"]
