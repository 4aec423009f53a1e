"""Import path of the older library for GovernancePipeline, PreDecision and PostDecision."""

from edictum.compat.pipeline import GovernancePipeline, PostDecision, PreDecision

__all__ = ["GovernancePipeline", "PostDecision", "PreDecision"]
