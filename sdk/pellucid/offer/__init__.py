"""The offer: which tools of a catalogue the model gets; see README.md beside this file."""

from pellucid.offer.explain import Explanation
from pellucid.offer.policy import PermissionRequest, Policy, Verdict

__all__ = ["Explanation", "PermissionRequest", "Policy", "Verdict"]
