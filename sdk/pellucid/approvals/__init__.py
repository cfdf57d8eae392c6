"""Approvals: calls that wait for a person, the decisions, and the checkpoint that a run resumes from."""

from pellucid.approvals.decisions import ApprovalRequest, Claims, Decision, FileClaims, MemoryClaims

__all__ = ["ApprovalRequest", "Claims", "Decision", "FileClaims", "MemoryClaims"]
