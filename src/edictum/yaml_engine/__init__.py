"""Import path of the older library for bundles as plain data."""

from edictum.compat.bundles import (
    BundleHash,
    CompiledBundle,
    ComposedBundle,
    compile_contracts,
    compose_bundles,
    load_bundle,
    load_bundle_string,
)

__all__ = [
    "BundleHash",
    "CompiledBundle",
    "ComposedBundle",
    "compile_contracts",
    "compose_bundles",
    "load_bundle",
    "load_bundle_string",
]
