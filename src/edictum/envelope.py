"""Import path of the older library for calls and what is known about tools."""

from edictum.compat.calls import BashClassifier, ToolEnvelope, create_envelope
from edictum.compat.calls import ToolCatalog as ToolRegistry
from edictum.core.call import Principal, SideEffect

__all__ = [
    "BashClassifier",
    "Principal",
    "SideEffect",
    "ToolEnvelope",
    "ToolRegistry",
    "create_envelope",
]
