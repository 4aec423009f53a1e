"""Import path of the older library for ToolRegistry, BashClassifier and create_envelope."""

from edictum.compat.calls import BashClassifier, create_envelope
from edictum.compat.calls import ToolCatalog as ToolRegistry

__all__ = ["BashClassifier", "ToolRegistry", "create_envelope"]
