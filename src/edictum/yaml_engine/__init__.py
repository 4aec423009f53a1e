"""Import path of the older library for bundles as plain data."""

from edictum.compat.bundles import (
    BundleHash,
    CompiledBundle,
    ComposedBundle,
    compile_contracts,
    compose_bundles,
)
from edictum.compat.bundles import read_bundle as load_bundle
from edictum.compat.bundles import read_bundle_string as load_bundle_string

__all__ = [
    "BundleHash",
    "CompiledBundle",
    "ComposedBundle",
    "compile_contracts",
    "compose_bundles",
    "load_bundle",
    "load_bundle_string",
]
