"""Approvals: calls that wait for a person, decisions about them, and checkpoints to resume from."""

from pellucid.approvals.claims import Claims, FileClaims, MemoryClaims
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import ExternalRequest, ExternalResult

__all__ = [
    "ApprovalRequest",
    "Claims",
    "Decision",
    "ExternalRequest",
    "ExternalResult",
    "FileClaims",
    "MemoryClaims",
]
