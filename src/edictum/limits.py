"""Limits of a session."""

from edictum.core.limits import OperationLimits

__all__ = ["OperationLimits"]
