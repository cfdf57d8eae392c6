"""An old name of `pellucid.durable`, for the queue of durable runs."""

from typing import TYPE_CHECKING

from pellucid.module_names import module_getattr

if TYPE_CHECKING:
    from pellucid.durable import (  # noqa: F401
        NATSQueue,
        StreamLimits,
    )

__all__: list[str] = []

_NAMES = (
    "NATSQueue",
    "StreamLimits",
)

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__, deprecated={name: ("pellucid.durable", name) for name in _NAMES})
