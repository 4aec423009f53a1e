"""The published JSON Schema of a bundle, for editors: ``bundle.schema.json`` beside this file.

In a YAML file, the comment ``# yaml-language-server: $schema=...`` makes many editors check and
complete while typing. The file is printed from the loader's own grammar (``python -m
edictum.contracts.schema``), and a test holds the two equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA_PATH = Path(__file__).parent / "bundle.schema.json"


def bundle_schema() -> dict[str, Any]:
    """The schema as it is published."""
    schema: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return schema
