"""Approvals: a person decides."""

from edictum.approval._urls import open_approvals
from edictum.approval.grants import GrantTerms
from edictum.approval.local import LocalApprovalBackend
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.approval.queue import ApprovalGrant, ApprovalQueue, GivenAnswer, QueuedApproval
from edictum.core.approvers import Approvers
from edictum.core.parking import ApprovalPending, HostAnswer

__all__ = [
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalGrant",
    "ApprovalPending",
    "ApprovalQueue",
    "ApprovalRequest",
    "ApprovalStatus",
    "Approvers",
    "GivenAnswer",
    "GrantTerms",
    "HostAnswer",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
    "QueuedApproval",
    "open_approvals",
]
