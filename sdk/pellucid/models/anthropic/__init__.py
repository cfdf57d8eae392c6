"""Adapter for Anthropic's Messages API. Needs the extra `anthropic`."""

from pellucid.models.anthropic.model import AnthropicModel

__all__ = ["AnthropicModel"]
