"""Sandbox contracts: the paths, programs and domains that a call may name."""

from edictum.contracts.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]
