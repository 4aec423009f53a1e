"""Sandbox contracts: the paths, programs and domains that a call may name.

``Sandbox`` is public; the modules are private. _shell reads command lines; _commands, _expand and
_bases find what they run, with which words, and where; _paths and _domains judge what is named.
"""

from edictum.contracts.sandbox._sandbox import Sandbox

__all__ = ["Sandbox"]
