"""Selection of the tools of a catalogue that the model gets; see README.md beside this file."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

__all__ = ["Explanation", "PermissionRequest", "Policy", "Verdict"]

if TYPE_CHECKING:
    from pellucid.selection.explain import Explanation
    from pellucid.selection.policy import PermissionRequest, Policy, Verdict
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(__name__, {"explain": ["Explanation"], "policy": ["PermissionRequest", "Policy", "Verdict"]}),
    )
    __dir__ = module_dir(__name__)
