"""What replies keep of the API they came from, and how it is sent back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edictum.harness.messages import ChatMessage


def find_content(message: ChatMessage, api: str) -> list[dict[str, Any]] | None:
    """Return the content that a reply of this API came with, or None."""
    kept = message.get("provider_content")
    if not isinstance(kept, Mapping) or kept.get("api") != api:
        return None
    content = kept.get("content")
    return list(content) if isinstance(content, list) else None


def list_call_ids(message: ChatMessage) -> list[str]:
    """Return the ids of the calls that the message is sent with."""
    return [call["id"] for call in message.get("tool_calls") or ()]


def drop_trailing(items: list[dict[str, Any]], kinds: Collection[str]) -> list[dict[str, Any]]:
    """Return the items without those at the end that must be followed by another one."""
    end = len(items)
    while end and items[end - 1].get("type") in kinds:
        end -= 1
    return items[:end]


def without_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item without what is null: some APIs answer with keys they do not accept."""
    return {name: value for name, value in item.items() if value is not None}
