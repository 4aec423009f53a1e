"""Contents: what replies keep of the API that they came from, and how it is sent back."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edictum.harness.messages import ChatMessage, ToolMessage, get_path, is_error_message
from edictum.harness.turn_call import NOT_A_NAME

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def find_content(message: ChatMessage, api: str, source: str = "") -> list[dict[str, Any]] | None:
    """Return the content that a reply of this API came with, or None if there is none, or if it is
    of another source.
    """
    kept = message.get("provider_content")
    if not isinstance(kept, Mapping) or kept.get("api") != api or is_foreign(message, source):
        return None
    content = get_path(kept, "content")
    if isinstance(content, Mapping):  # with what stands beside the blocks
        content = content.get("content")
    return list(content) if isinstance(content, list) else None


def is_foreign(message: ChatMessage, source: str) -> bool:
    """Return whether a reply came from another address than this one, where its own keys, ids and
    signatures would be refused. False if either address is not known.
    """
    kept = message.get("provider_content")
    given = kept.get("source") if isinstance(kept, Mapping) else None
    return bool(source and given and given != source)


def drop_content(message: ChatMessage) -> ChatMessage:
    """Return a copy of a reply's message that every API accepts."""
    return {name: value for name, value in message.items() if name != "provider_content"}


def list_call_ids(message: ChatMessage) -> list[str]:
    """Return the ids of the calls that the message is sent with."""
    return [call["id"] for call in message.get("tool_calls") or ()]


def drop_trailing(items: list[dict[str, Any]], kinds: Collection[str]) -> list[dict[str, Any]]:
    """Return the items without trailing ones of kinds that must be followed by another item."""
    end = len(items)
    while end and items[end - 1].get("type") in kinds:
        end -= 1
    return items[:end]


def without_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item without what is null: some APIs answer with keys they do not accept."""
    return {name: value for name, value in item.items() if value is not None}


# --- Ids and names of calls -----------------------------------------------------------------------


@dataclass(slots=True)
class CallNames:
    """Ids and names of calls as an API accepts them.

    Models make up names, some servers give the same ids in every reply, and a conversation may have
    begun with another provider. ``declared`` are names of tools on offer: the API itself reports
    those that it does not accept.
    """

    id_pattern: re.Pattern[str]
    declared: Collection[str] = ()
    _uses: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of each id
    _open: dict[str, deque[str]] = field(default_factory=dict)  # sent ids, by those in the message

    def adapt(
        self, messages: Sequence[ChatMessage], api: str, source: str = ""
    ) -> Iterator[ChatMessage]:
        """Yield the messages with other ids and names where these would be refused. Replies that
        have the content of this API stay as they are.
        """
        for message in messages:
            if message["role"] == "tool":
                yield self._adapt_result(message)
            elif not message.get("tool_calls"):
                yield message
            elif find_content(message, api, source) is not None:
                self._keep_ids(message)
                yield message
            else:
                yield self._adapt_calls(message)

    def _keep_ids(self, message: ChatMessage) -> None:
        self._open = {}
        for given in list_call_ids(message):
            self._uses[given] += 1

    def _adapt_calls(self, message: ChatMessage) -> ChatMessage:
        self._open, calls = {}, []
        for call in message["tool_calls"]:
            sent = self._choose_id(call["id"])
            self._open.setdefault(call["id"], deque()).append(sent)
            calls.append({**call, "id": sent, **self._adapt_function(call)})
        return {**message, "tool_calls": calls}

    def _adapt_function(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {"function": {**function, "name": self.adapt_name(function["name"])}}

    def _adapt_result(self, message: ChatMessage) -> ChatMessage:
        waiting = self._open.get(message.get("tool_call_id", ""))
        if not waiting or (sent := waiting.popleft()) == message["tool_call_id"]:
            return message
        changed = ToolMessage(message, tool_call_id=sent)
        changed.is_error = is_error_message(message)
        return changed

    def _choose_id(self, given: str) -> str:
        """Return the id, or a replacement that is the same in every request."""
        self._uses[given] += 1
        if self._uses[given] == 1 and self.id_pattern.fullmatch(given):
            return given
        text = f"{self._uses[given]} {given}".encode("utf-8", "replace")
        return f"call_{hashlib.sha256(text).hexdigest()[:24]}"

    def accepts(self, message: ChatMessage) -> bool:
        """Return whether the calls of a message have names that the API takes."""
        names = (call["function"]["name"] for call in message.get("tool_calls") or ())
        return all(self.adapt_name(name) == name for name in names)

    def adapt_name(self, name: str) -> str:
        if name in self.declared or FUNCTION_NAME.fullmatch(name):
            return name
        return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or NOT_A_NAME
