"""Models: the protocol, what goes through it, and adapters that are loaded when they are asked for."""

from pellucid.models.base import (
    Model,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    OutputSchema,
    Settings,
    StreamItem,
)

__all__ = ["Model", "ModelDelta", "ModelRequest", "ModelResponse", "OutputSchema", "Settings", "StreamItem"]
