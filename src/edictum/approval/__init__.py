"""Approvals: a person decides."""

from edictum.approval._urls import open_approvals
from edictum.approval.local import LocalApprovalBackend
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.parking import ApprovalPending, HostAnswer
from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.approval.queue import ApprovalQueue, QueuedApproval

__all__ = [
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalPending",
    "ApprovalQueue",
    "ApprovalRequest",
    "ApprovalStatus",
    "HostAnswer",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
    "QueuedApproval",
    "open_approvals",
]
