"""Approvals: a person decides."""

from edictum.approval._urls import migrate_approvals, open_approvals
from edictum.approval.grants import GrantTerms
from edictum.approval.links import ApprovalLinks
from edictum.approval.local import LocalApprovalBackend
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.approval.queue import (
    ApprovalGrant,
    ApprovalQueue,
    GivenAnswer,
    Notifier,
    QueuedApproval,
)
from edictum.approval.webhook import Webhook, verify_webhook
from edictum.core.approvers import Approvers
from edictum.core.parking import ApprovalPending, HostAnswer

__all__ = [
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalGrant",
    "ApprovalLinks",
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
    "Notifier",
    "QueuedApproval",
    "Webhook",
    "migrate_approvals",
    "open_approvals",
    "verify_webhook",
]
