"""The old name of `pellucid.selection`."""

from typing import TYPE_CHECKING

from pellucid.module_names import module_getattr

if TYPE_CHECKING:
    from pellucid.selection import Explanation, PermissionRequest, Policy, Verdict  # noqa: F401

__all__: list[str] = []

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        deprecated={
            name: ("pellucid.selection", name) for name in ("Explanation", "PermissionRequest", "Policy", "Verdict")
        },
    )
