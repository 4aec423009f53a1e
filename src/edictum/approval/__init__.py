"""Approvals: a person decides."""

from edictum.approval._urls import open_approvals
from edictum.approval.links import ApprovalLinks
from edictum.approval.local import LocalApprovalBackend
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.approval.queue import ApprovalQueue, Notifier, QueuedApproval
from edictum.approval.webhook import Webhook, verify_webhook

__all__ = [
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalLinks",
    "ApprovalQueue",
    "ApprovalRequest",
    "ApprovalStatus",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
    "Notifier",
    "QueuedApproval",
    "Webhook",
    "open_approvals",
    "verify_webhook",
]
