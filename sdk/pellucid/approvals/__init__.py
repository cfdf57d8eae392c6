"""Approvals: calls that wait for a person, decisions about them, and checkpoints to resume from."""

from pellucid.approvals.claims import Claims, FileClaims, MemoryClaims
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import ExternalRequest, ExternalResult
from pellucid.context import ExternalCall

__all__ = [
    "ApprovalRequest",
    "Claims",
    "Decision",
    "ExternalCall",
    "ExternalRequest",
    "ExternalResult",
    "FileClaims",
    "MemoryClaims",
]
