"""Import path of the older library for loading bundles."""

from edictum.compat.bundles import BundleHash
from edictum.compat.bundles import read_bundle as load_bundle
from edictum.compat.bundles import read_bundle_string as load_bundle_string

__all__ = ["BundleHash", "load_bundle", "load_bundle_string"]
