"""Import path of the older library for compiling bundles."""

from edictum.compat.bundles import CompiledBundle, compile_contracts

__all__ = ["CompiledBundle", "compile_contracts"]
