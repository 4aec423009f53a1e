"""Contracts: what may be called, when, and what may be shown of the result."""

from edictum.core.contract import Contract, Verdict, postcondition, precondition, session_contract

__all__ = ["Contract", "Verdict", "postcondition", "precondition", "session_contract"]
