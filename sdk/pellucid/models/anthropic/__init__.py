"""Anthropic's Messages API; needs the extra `anthropic`."""

from pellucid.models.anthropic.model import AnthropicModel

__all__ = ["AnthropicModel"]
