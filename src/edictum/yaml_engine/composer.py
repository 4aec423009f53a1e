"""Import path of the older library for composing bundles."""

from edictum.compat.bundles import ComposedBundle, compose_bundles
from edictum.contracts._report import CompositionOverride, CompositionReport, ShadowContract

__all__ = [
    "ComposedBundle",
    "CompositionOverride",
    "CompositionReport",
    "ShadowContract",
    "compose_bundles",
]
