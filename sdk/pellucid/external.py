"""The old name of `pellucid.configured`."""

from typing import TYPE_CHECKING

from pellucid.module_names import module_getattr

if TYPE_CHECKING:
    from pellucid.configured import FACTORIES, Factory, ToolOptions  # noqa: F401
    from pellucid.configured import ConfiguredTools as ExternalTools  # noqa: F401
    from pellucid.configured import configured_tools as external_tools  # noqa: F401

__all__: list[str] = []

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        deprecated={name: ("pellucid.configured", name) for name in ("FACTORIES", "Factory", "ToolOptions")}
        | {
            "ExternalTools": ("pellucid.configured", "ConfiguredTools"),
            "external_tools": ("pellucid", "configured_tools"),
        },
    )
