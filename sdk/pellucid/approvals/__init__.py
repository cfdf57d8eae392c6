"""Approvals: calls that wait for a person, the decisions, and the checkpoint that a run resumes from."""

from pellucid.approvals.claims import Claims, FileClaims, MemoryClaims
from pellucid.approvals.decisions import ApprovalRequest, Decision

__all__ = ["ApprovalRequest", "Claims", "Decision", "FileClaims", "MemoryClaims"]
