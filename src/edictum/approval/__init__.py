"""Approvals: a person decides."""

from edictum.approval.local import LocalApprovalBackend
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus

__all__ = [
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalRequest",
    "ApprovalStatus",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
]
