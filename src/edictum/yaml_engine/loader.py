"""Import path of the older library for loading bundles."""

from edictum.compat.bundles import BundleHash, load_bundle, load_bundle_string

__all__ = ["BundleHash", "load_bundle", "load_bundle_string"]
