"""Contracts: what may be called, when, and what may be shown of the result.

Public are the names below, ``edictum.contracts.sandbox`` and ``edictum.contracts.schema``. Modules
with an underscore are private: they turn the text of a bundle into a policy, in this order: _load,
_parse (with _grammar, _expressions and their tables), _compose, _compile.
"""

from edictum.core.contract import Contract, Verdict, postcondition, precondition, session_contract

__all__ = ["Contract", "Verdict", "postcondition", "precondition", "session_contract"]
