"""Models: the protocol and what goes through it."""

from pellucid.models.base import Model, ModelDelta, ModelRequest, ModelResponse, StreamItem

__all__ = ["Model", "ModelDelta", "ModelRequest", "ModelResponse", "StreamItem"]
