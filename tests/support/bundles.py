"""Bundles that tests write as data."""

from __future__ import annotations

import json
from typing import Any

from edictum.testing.cases import HEAD


def contract(
    name: str, *, message: str = "m", effect: str = "deny", tool: str = "*", **keys: Any
) -> dict[str, Any]:
    """Return a contract with a ``then``, a precondition unless ``type`` says otherwise."""
    then = {"effect": effect, "message": message}
    return {"id": name, "type": "pre", "tool": tool, **keys, "then": then}


def make_asking_bundle(message: str, *tools: str, comment: object = "", **keys: Any) -> str:
    """Return the text of a bundle that asks a person about each call of these tools."""
    then = {"effect": "approve", "message": message, "timeout": 60}
    asking = {"id": "ask", "type": "pre", "tools": list(tools), "then": then}
    return f"# {comment}\n{bundle_of(asking, **keys)}"


def bundle_of(*contracts: dict[str, Any], **keys: Any) -> str:
    """Return the text of a bundle."""
    return json.dumps({**HEAD, "contracts": list(contracts), **keys})
