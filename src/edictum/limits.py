"""Import path of the older library for OperationLimits."""

from edictum.core.limits import OperationLimits

__all__ = ["OperationLimits"]
