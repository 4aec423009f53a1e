"""The JSON Schema of a bundle, for editors.

In a YAML file, the comment ``# yaml-language-server: $schema=...`` makes many editors check and
complete while typing. An installed package has the schema as ``bundle.schema.json`` beside this
file; the build writes it, and ``python -m edictum.contracts.schema`` prints it.
"""

from __future__ import annotations

from typing import Any


def bundle_schema() -> dict[str, Any]:
    """Return the schema, made from the loader's own grammar."""
    from edictum.contracts._grammar import make_schema

    return make_schema()
