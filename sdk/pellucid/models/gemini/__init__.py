"""Adapter for Gemini, through Google's API or Vertex AI. Needs the extra `gemini`."""

from pellucid.models.gemini.model import GeminiModel

__all__ = ["GeminiModel"]
