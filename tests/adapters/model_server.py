"""A server of models on a local port, which refuses what the real APIs refuse.

It knows three APIs: Anthropic's Messages, OpenAI's chat completions (with the extensions that
others have: ``reasoning_content`` and thought signatures, which must be returned) and OpenAI's
Responses. A conversation is a script of replies, written once for all of them; each API says them
in its own shape, whole or as a stream. The keys that a request may have are those of the clients'
own types.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic.types
import openai.types.chat
import openai.types.responses
from anthropic.types import message_create_params as anthropic_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

# --- What a model says ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Think:
    text: str
    redacted: bool = False


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: Any = field(default_factory=dict)  # a text is sent as it is


@dataclass(frozen=True)
class Search:
    """The provider's own web search: asked for and answered by the provider."""

    query: str
    answered: bool = True


@dataclass(frozen=True)
class Refuse:
    text: str


@dataclass(frozen=True)
class Reply:
    parts: tuple[Any, ...]
    stop: str = ""  # of the API; by default what it says for such parts


def says(*parts: Any, stop: str = "") -> Reply:
    return Reply(tuple(Say(part) if isinstance(part, str) else part for part in parts), stop)


class Refused(Exception):
    """What the real API would answer with status 400."""


def demand(condition: object, problem: str) -> None:
    if not condition:
        raise Refused(problem)


def keys_of(kind: Any) -> set[str]:
    """Return the keys of a TypedDict, with those of its bases."""
    return set(typing.get_type_hints(kind, include_extras=True)) if kind else set()


def check_keys(value: dict[str, Any], allowed: set[str], where: str) -> None:
    for name in value:
        demand(name in allowed, f"{where}.{name}: Extra inputs are not permitted")


def check_strict(schema: Any, where: str = "schema") -> None:
    """Check what both providers demand of a schema for answers."""
    if isinstance(schema, list):
        for item in schema:
            check_strict(item, where)
    if not isinstance(schema, dict):
        return
    demand(
        not {"minimum", "maxLength", "pattern", "default"} & set(schema) or "type" not in schema,
        f"{where}: keyword is not permitted",
    )
    demand("$ref" not in schema or set(schema) <= {"$ref", "$defs"}, f"{where}: $ref with siblings")
    if schema.get("type") == "object":
        demand(schema.get("additionalProperties") is False, f"{where}: additionalProperties")
        names = set(schema.get("properties", {}))
        demand(set(schema.get("required", ())) == names, f"{where}: required must name all")
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            for key, item in value.items():
                check_strict(item, f"{where}.{key}")
        else:
            check_strict(value, f"{where}.{name}")


def check_text(text: Any, pattern: str, where: str) -> None:
    demand(re.fullmatch(pattern, text), f"{where}: String should match pattern '{pattern}'")


def check_data_url(url: str, where: str) -> None:
    head, comma, data = url.partition(";base64,")
    demand(head.startswith("data:") and comma, f"{where}: not a data URL")
    demand(base64.b64decode(data, validate=True), f"{where}: no data")


def pieces(text: str) -> Iterator[str]:
    """Cut a text where a stream might, in the middle of words and escapes."""
    for start in range(0, len(text), 3):
        yield text[start : start + 3]


# --- Anthropic ------------------------------------------------------------------------------------


def _block_keys() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in dir(anthropic.types):
        kind = getattr(anthropic.types, name)
        if name.endswith("BlockParam") and "type" in getattr(kind, "__annotations__", {}):
            hints = typing.get_type_hints(kind)
            for value in typing.get_args(hints["type"]):
                found.setdefault(value, set()).update(hints)
    return found


class AnthropicWire:
    path = "/v1/messages"
    OVERLOADED = (
        'event: error\ndata: {"type": "error", "error": '
        '{"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    )
    BLOCKS = _block_keys()
    REQUEST = keys_of(anthropic_params.MessageCreateParamsStreaming)
    USER = {"text", "image", "document", "tool_result", "search_result"}

    def __init__(self) -> None:
        self.signed: dict[str, dict[str, Any]] = {}  # thinking that was sent, by its signature
        self.sent: list[list[dict[str, Any]]] = []

    # what is answered

    def answer(self, reply: Reply, number: int) -> dict[str, Any]:
        content = [self._block(part, number, at) for at, part in enumerate(reply.parts)]
        content = [block for blocks in content for block in blocks]
        self.sent.append(content)
        has_calls = any(block["type"] == "tool_use" for block in content)
        stop = reply.stop or ("tool_use" if has_calls else "end_turn")
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "stop_details": {"type": "refusal", "category": "cyber", "explanation": "Not that."}
            if stop == "refusal"
            else None,
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 2,
                "output_tokens_details": {"thinking_tokens": 1},
            },
        }

    def _block(self, part: Any, number: int, at: int) -> list[dict[str, Any]]:
        signature = f"sig-{number}-{at}=="
        match part:
            case Say(text):
                return [{"type": "text", "text": text, "citations": None}]
            case Think(text, False):
                self.signed[signature] = {
                    "type": "thinking",
                    "thinking": text,
                    "signature": signature,
                }
                return [dict(self.signed[signature])]
            case Think(text, True):
                self.signed[signature] = {"type": "redacted_thinking", "data": signature}
                return [dict(self.signed[signature])]
            case Call(id, name, arguments):
                return [{"type": "tool_use", "id": id, "name": name, "input": arguments}]
            case Search(query, answered):
                use = {
                    "type": "server_tool_use",
                    "id": f"srvtoolu_{number}{at}",
                    "name": "web_search",
                    "input": {"query": query},
                }
                page = {
                    "type": "web_search_result",
                    "url": "https://example.org",
                    "title": query,
                    "encrypted_content": "abc=",
                    "page_age": None,
                }
                result = {
                    "type": "web_search_tool_result",
                    "tool_use_id": use["id"],
                    "content": [page],
                }
                cited = {
                    "type": "text",
                    "text": f"Found {query}.",
                    "citations": [
                        {
                            "type": "web_search_result_location",
                            "url": "https://example.org",
                            "title": query,
                            "encrypted_index": "xyz=",
                            "cited_text": query,
                        }
                    ],
                }
                return [use, result, cited] if answered else [use]
            case Refuse(text):
                return [{"type": "text", "text": text}]
        raise AssertionError(part)

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        start = {
            **answer,
            "content": [],
            "stop_reason": None,
            "usage": {**answer["usage"], "output_tokens": 1},
        }
        yield "message_start", {"message": start}
        yield "ping", {}
        for index, block in enumerate(answer["content"]):
            empty, deltas = self._pieces(block)
            yield "content_block_start", {"index": index, "content_block": empty}
            for delta in deltas:
                yield "content_block_delta", {"index": index, "delta": delta}
            yield "content_block_stop", {"index": index}
        ended = {name: answer[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        yield "message_delta", {"delta": ended, "usage": {"output_tokens": 5}}
        yield "message_stop", {}

    def _pieces(self, block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        match block["type"]:
            case "text":
                deltas = [{"type": "text_delta", "text": each} for each in pieces(block["text"])]
                cited = [
                    {"type": "citations_delta", "citation": each}
                    for each in block.get("citations") or ()
                ]
                return {**block, "text": "", "citations": None}, [*cited, *deltas]
            case "thinking":
                thought = [
                    {"type": "thinking_delta", "thinking": each}
                    for each in pieces(block["thinking"])
                ]
                signed = {"type": "signature_delta", "signature": block["signature"]}
                return {"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]
            case "tool_use" | "server_tool_use":
                given = block["input"]
                text = given if isinstance(given, str) else json.dumps(given) if given else ""
                parts = ["", *pieces(text)]
                return {**block, "input": {}}, [
                    {"type": "input_json_delta", "partial_json": each} for each in parts
                ]
        return block, []

    def frame(self, event: tuple[str, dict[str, Any]]) -> str:
        kind, data = event
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"

    END = ""

    # what is refused

    def check(self, body: dict[str, Any]) -> None:
        check_keys(body, self.REQUEST, "body")
        demand(isinstance(body["max_tokens"], int), "max_tokens")
        messages, tools = body["messages"], body.get("tools") or []
        demand(messages and messages[0]["role"] == "user", "messages: first must be user")
        names = [tool.get("name") for tool in tools]
        demand(len(set(names)) == len(names), "tools: Tool names must be unique")
        choice = body.get("tool_choice")
        demand(choice is None or tools, "tool_choice may only be specified while providing tools")
        thinks = (body.get("thinking") or {}).get("type") == "enabled"
        forced = (choice or {}).get("type") in ("any", "tool")
        demand(not (thinks and forced), "Thinking may not be enabled when tool_choice forces")
        self._check_system(body.get("system"))
        roles = [message["role"] for message in messages]
        demand(all(a != b for a, b in itertools.pairwise(roles)), "roles alternate")
        for number, message in enumerate(messages):
            self._check_message(message, f"messages.{number}")
        self._check_calls(messages, tools)
        self._check_container(messages, body.get("container"))
        self._check_thinking(messages, thinks)
        if "format" in (body.get("output_config") or {}):
            demand(body["output_config"]["format"]["type"] == "json_schema", "output_config.format")
            check_strict(body["output_config"]["format"]["schema"])

    def _check_system(self, system: Any) -> None:
        for block in system if isinstance(system, list) else ():
            demand(block["type"] == "text" and block["text"].strip(), "system: blank text")
        demand(system is None or system, "system: empty")

    def _check_message(self, message: dict[str, Any], where: str) -> None:
        check_keys(message, {"role", "content"}, where)
        demand(message["role"] in ("user", "assistant"), f"{where}.role")
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        demand(content, f"{where}: all messages must have non-empty content")
        for at, block in enumerate(content):
            self._check_block(block, f"{where}.content.{at}", message["role"])
        if message["role"] == "assistant":
            last = content[-1]["type"]
            demand("thinking" not in last, f"{where}: The final block cannot be `thinking`")

    def _check_block(self, block: dict[str, Any], where: str, role: str) -> None:
        kind = block["type"]
        demand(kind in self.BLOCKS, f"{where}: unknown block {kind}")
        demand((kind in self.USER) == (role == "user") or kind == "text", f"{where}: {kind}")
        check_keys(block, self.BLOCKS[kind], where)
        if kind == "text":
            demand(block["text"].strip(), f"{where}: text must contain non-whitespace text")
        if kind == "tool_use":
            demand(isinstance(block["input"], dict), f"{where}.input: should be a valid dictionary")
            check_text(block["id"], r"[a-zA-Z0-9_-]+", f"{where}.id")
            check_text(block["name"], r"[a-zA-Z0-9_-]{1,128}", f"{where}.name")
        if kind in ("image", "document") and block["source"]["type"] == "base64":
            demand(base64.b64decode(block["source"]["data"], validate=True), f"{where}: data")
            allowed = ("image/png", "image/jpeg", "image/gif", "image/webp")
            allowed = allowed if kind == "image" else ("application/pdf",)
            demand(block["source"]["media_type"] in allowed, f"{where}: media_type")
        if kind == "tool_result":
            demand(isinstance(block.get("is_error", False), bool), f"{where}.is_error")
            check_text(block["tool_use_id"], r"[a-zA-Z0-9_-]+", f"{where}.tool_use_id")
            inner = block["content"] if isinstance(block["content"], list) else ()
            for at, part in enumerate(inner):
                demand(part["type"] in self.USER - {"tool_result"}, f"{where}.content.{at}")
                self._check_block(part, f"{where}.content.{at}", "user")

    def _check_calls(self, messages: list[dict[str, Any]], tools: list[Any]) -> None:
        seen: set[str] = set()
        for number, message in enumerate(messages):
            blocks = message["content"] if isinstance(message["content"], list) else []
            uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
            demand(not set(uses) & seen, "messages: `tool_use` ids must be unique")
            demand(len(set(uses)) == len(uses), "messages: `tool_use` ids must be unique")
            seen |= set(uses)
            demand(not uses or tools, "Requests which include `tool_use` blocks must define tools")
            following = messages[number + 1]["content"] if number + 1 < len(messages) else []
            results = [
                block["tool_use_id"]
                for block in (following if isinstance(following, list) else [])
                if block["type"] == "tool_result"
            ]
            if message["role"] == "assistant":
                missing = "`tool_use` ids were found without `tool_result` blocks immediately after"
                demand(results == uses, f"messages.{number}: {missing}: {uses}, {results}")
                self._check_searches(blocks, number + 1 == len(messages), number)
            kinds = [block["type"] for block in blocks]
            demand(
                kinds == sorted(kinds, key=lambda kind: kind != "tool_result"),
                f"messages.{number}: tool_result blocks must come first",
            )

    def _check_container(self, messages: list[dict[str, Any]], container: Any) -> None:
        """Code that waits for the result of a call runs in a container, which must be named."""
        asked = messages[-2]["content"] if len(messages) > 1 else []
        callers = [block.get("caller") for block in asked if isinstance(block, dict)]
        pending = any(caller and caller["type"] != "direct" for caller in callers)
        missing = "container_id is required when there are pending tool uses generated by code"
        demand(container or not pending, missing)

    def _check_searches(self, blocks: list[dict[str, Any]], is_last: bool, number: int) -> None:
        asked = [block["id"] for block in blocks if block["type"] == "server_tool_use"]
        answered = [block.get("tool_use_id") for block in blocks]
        missing = f"messages.{number}: `web_search` tool use was found without its result block"
        waiting = [(block.get("caller") or {}).get("tool_id") for block in blocks]
        demand(is_last or set(asked) <= {*answered, *waiting}, missing)

    def _check_thinking(self, messages: list[dict[str, Any]], thinks: bool) -> None:
        for message in messages:
            for block in message["content"] if isinstance(message["content"], list) else ():
                key = block.get("signature") or block.get("data")
                if block["type"] in ("thinking", "redacted_thinking"):
                    demand(key in self.signed, "Invalid `signature` in `thinking` block")
                    demand(self.signed[key] == block, "`thinking` blocks cannot be modified")
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        if last is None or not thinks or isinstance(last["content"], str):
            return
        kinds = [block["type"] for block in last["content"]]
        if "tool_use" in kinds:
            demand(
                kinds[0] in ("thinking", "redacted_thinking"),
                f"Expected `thinking` or `redacted_thinking`, but found `{kinds[0]}`",
            )


# --- Chat completions -----------------------------------------------------------------------------


class ChatWire:
    path = "/v1/chat/completions"
    OVERLOADED = 'data: {"error": {"message": "Overloaded", "code": 502}}\n\n'
    REQUEST = keys_of(chat_params.CompletionCreateParamsStreaming)
    ROLES = {
        "system": keys_of(openai.types.chat.ChatCompletionSystemMessageParam),
        "developer": keys_of(openai.types.chat.ChatCompletionDeveloperMessageParam),
        "user": keys_of(openai.types.chat.ChatCompletionUserMessageParam),
        "assistant": keys_of(openai.types.chat.ChatCompletionAssistantMessageParam),
        "tool": keys_of(openai.types.chat.ChatCompletionToolMessageParam),
    }

    def __init__(self) -> None:
        self.thinks = False
        self.thoughts: dict[str, str] = {}  # what was thought before a call, by the call's id
        self.signed: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []

    def answer(self, reply: Reply, number: int) -> dict[str, Any]:
        said = "".join(part.text for part in reply.parts if isinstance(part, Say))
        thought = "".join(part.text for part in reply.parts if isinstance(part, Think))
        refusal = "".join(part.text for part in reply.parts if isinstance(part, Refuse)) or None
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said or None,
            "refusal": refusal,
            "annotations": [],
        }
        if thought:
            self.thinks = True
            message["reasoning_content"] = thought
        calls = [part for part in reply.parts if isinstance(part, Call)]
        if calls:
            message["tool_calls"] = [self._call(call, thought) for call in calls]
        self.sent.append(message)
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-test",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": reply.stop or ("tool_calls" if calls else "stop"),
                }
            ],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        }

    def _call(self, call: Call, thought: str) -> dict[str, Any]:
        given = call.arguments
        text = given if isinstance(given, str) else json.dumps(given)
        made: dict[str, Any] = {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": text},
        }
        if thought:
            self.thoughts[call.id] = thought
            made["extra_content"] = {"google": {"thought_signature": f"sig-{call.id}=="}}
            self.signed[call.id] = made["extra_content"]
        return made

    def stream(self, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
        choice, message = answer["choices"][0], answer["choices"][0]["message"]

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            one = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            base = {name: answer[name] for name in ("id", "created", "model")}
            return {**base, "object": "chat.completion.chunk", "choices": [one], "usage": None}

        yield chunk({"role": "assistant", "content": "", "refusal": None})
        for name in ("reasoning_content", "content", "refusal"):
            for piece in pieces(message.get(name) or ""):
                yield chunk({name: piece})
        for index, call in enumerate(message.get("tool_calls") or ()):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield chunk({"tool_calls": [{**call, "index": index, "function": function}]})
            for piece in pieces(call["function"]["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, choice["finish_reason"])
        yield {**chunk({}), "choices": [], "usage": answer["usage"]}

    def frame(self, event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event)}\n\n"

    END = "data: [DONE]\n\n"

    def check(self, body: dict[str, Any]) -> None:
        check_keys(body, self.REQUEST, "body")
        tools = body.get("tools")
        demand(tools is None or tools, "tools: [] is too short")
        for name in ("tool_choice", "parallel_tool_calls"):
            demand(name not in body or tools, f"{name} is only allowed when 'tools' are specified")
        demand("stream_options" not in body or body.get("stream"), "stream_options needs stream")
        shape = body.get("response_format") or {}
        if shape.get("type") == "json_schema" and shape["json_schema"].get("strict"):
            check_strict(shape["json_schema"]["schema"])
        waiting: list[str] = []
        for number, message in enumerate(body["messages"]):
            waiting = self._check_message(message, f"messages[{number}]", waiting)
        demand(not waiting, "tool_call_ids did not have response messages")

    def _check_message(self, message: dict[str, Any], where: str, waiting: list[str]) -> list[str]:
        role, content = message["role"], message.get("content")
        own = {"reasoning_content"} if self.thinks else set()  # OpenAI itself has none
        check_keys(message, self.ROLES[role] | own, where)
        if role == "tool":
            demand(waiting[:1] == [message["tool_call_id"]], f"{where}: tool message out of order")
            parts = content if isinstance(content, list) else ()
            demand(all(part["type"] == "text" for part in parts), f"{where}: only text")
            return waiting[1:]
        demand(not waiting, f"{where}: tool_call_ids did not have response messages: {waiting}")
        calls = message.get("tool_calls")
        demand(content or calls or message.get("refusal"), f"{where}: content is empty")
        demand(calls is None or calls, f"{where}.tool_calls: [] is too short")
        for part in content if isinstance(content, list) else ():
            demand(part["type"] in ("text", "image_url", "file"), f"{where}: {part['type']}")
            if part["type"] != "text":
                url = part.get("image_url", {}).get("url") or part.get("file", {}).get("file_data")
                check_data_url(url, where)
        for call in calls or ():
            self._check_call(call, message, where)
        return [call["id"] for call in calls or ()]

    def _check_call(self, call: dict[str, Any], message: dict[str, Any], where: str) -> None:
        check_keys(call, {"id", "type", "function", "extra_content"}, where)
        check_keys(call["function"], {"name", "arguments"}, where)
        check_text(call["id"], r".{1,40}", f"{where}.id")
        check_text(call["function"]["name"], r"[a-zA-Z0-9_-]{1,64}", f"{where}.name")
        demand(isinstance(call["function"]["arguments"], str), f"{where}: arguments")
        signed, thought = self.signed.get(call["id"]), self.thoughts.get(call["id"])
        demand(call.get("extra_content") == signed, f"{where}: thought_signature")
        demand(message.get("reasoning_content") == thought, f"{where}: reasoning")


# --- Responses ------------------------------------------------------------------------------------


def _item_keys() -> dict[str, set[str]]:
    types = openai.types.responses
    return {
        "reasoning": keys_of(types.ResponseReasoningItemParam),
        "function_call": keys_of(types.ResponseFunctionToolCallParam),
        "web_search_call": keys_of(types.ResponseFunctionWebSearchParam),
        "output_message": keys_of(types.ResponseOutputMessageParam),
        "message": keys_of(types.EasyInputMessageParam),
        "function_call_output": {"type", "call_id", "output", "id", "status"},
    }


class ResponsesWire:
    path = "/v1/responses"
    OVERLOADED = (
        'event: error\ndata: {"type": "error", "sequence_number": 9, '
        '"code": "server_error", "message": "Overloaded", "param": null}\n\n'
    )
    REQUEST = keys_of(responses_params.ResponseCreateParamsStreaming)
    ITEMS = _item_keys()

    def __init__(self) -> None:
        self.reasoned: dict[str, dict[str, Any]] = {}  # by the id of the item that needs it
        self.known: dict[str, dict[str, Any]] = {}
        self.stored = True
        self.sent: list[list[dict[str, Any]]] = []

    def answer(self, reply: Reply, number: int) -> dict[str, Any]:
        items = [self._item(part, number, at) for at, part in enumerate(reply.parts)]
        for before, item in itertools.pairwise(items):
            if before["type"] == "reasoning":
                self.reasoned[item["id"]] = before
        self.known |= {item["id"]: item for item in items}
        self.sent.append(items)
        answer: dict[str, Any] = {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1,
            "model": "gpt-test",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "output": items,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 3},
                "output_tokens_details": {"reasoning_tokens": 1},
            },
        }
        if reply.stop:
            answer |= {"status": "incomplete", "incomplete_details": {"reason": reply.stop}}
        return answer

    def _item(self, part: Any, number: int, at: int) -> dict[str, Any]:
        match part:
            case Say(text):
                said = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
                return self._message(number, at, said)
            case Refuse(text):
                return self._message(number, at, {"type": "refusal", "refusal": text})
            case Think(text, redacted):
                return {
                    "type": "reasoning",
                    "id": f"rs_{number}{at}",
                    "summary": [] if redacted else [{"type": "summary_text", "text": text}],
                    "encrypted_content": None if self.stored else f"enc-{number}-{at}==",
                }
            case Call(id, name, arguments):
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                return {
                    "type": "function_call",
                    "id": f"fc_{number}{at}",
                    "call_id": id,
                    "name": name,
                    "arguments": text,
                    "status": "completed",
                }
            case Search(query, _):
                return {
                    "type": "web_search_call",
                    "id": f"ws_{number}{at}",
                    "status": "completed",
                    "action": {"type": "search", "query": query},
                }
        raise AssertionError(part)

    def _message(self, number: int, at: int, content: dict[str, Any]) -> dict[str, Any]:
        base = {"type": "message", "id": f"msg_{number}{at}", "role": "assistant"}
        return {**base, "status": "completed", "content": [content]}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "response.created", {"response": {**answer, "status": "in_progress", "output": []}}
        for index, item in enumerate(answer["output"]):
            empty = {**item, "arguments": ""} if item["type"] == "function_call" else item
            yield "response.output_item.added", {"output_index": index, "item": empty}
            base = {"output_index": index, "item_id": item["id"], "content_index": 0}
            for kind, text in self._texts(item):
                for piece in pieces(text):
                    yield f"response.{kind}.delta", {**base, "summary_index": 0, "delta": piece}
            yield "response.output_item.done", {"output_index": index, "item": item}
        yield f"response.{answer['status']}", {"response": answer}

    def _texts(self, item: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if item["type"] == "function_call":
            yield "function_call_arguments", item["arguments"]
        for part in item.get("summary") or ():
            yield "reasoning_summary_text", part["text"]
        for part in item.get("content") or ():
            yield (
                ("refusal", part["refusal"]) if "refusal" in part else ("output_text", part["text"])
            )

    def frame(self, event: tuple[str, dict[str, Any]]) -> str:
        kind, data = event
        body = json.dumps({"type": kind, "sequence_number": 0, **data})
        return f"event: {kind}\ndata: {body}\n\n"

    END = ""

    def check(self, body: dict[str, Any]) -> None:
        check_keys(body, self.REQUEST, "body")
        self.stored = body.get("store") is not False
        tools = body.get("tools") or ()
        demand("tool_choice" not in body or tools, "tool_choice needs tools")
        for tool in tools:
            if tool["type"] == "function":
                check_keys(tool, {"type", "name", "description", "parameters", "strict"}, "tools")
                demand(tool["strict"] is False, "tools: schema is not strict")
        shape = (body.get("text") or {}).get("format") or {}
        if shape.get("strict"):
            check_strict(shape["schema"])
        demand(body["input"], "input is empty")
        asked: list[str] = []
        ids = [item.get("id") for item in body["input"]]
        for number, item in enumerate(body["input"]):
            where = f"input[{number}]"
            asked = self._check_item(item, asked, where)
            self._check_reasoning(item, body["input"][number + 1 :], ids, where)
        demand(not asked, f"No tool output found for function call {asked}")

    def _check_item(self, item: dict[str, Any], asked: list[str], where: str) -> list[str]:
        kind = item.get("type", "message")
        own = kind == "message" and item["role"] == "assistant" and "id" in item
        demand(kind in self.ITEMS, f"{where}.type: {kind}")
        check_keys(item, self.ITEMS["output_message" if own else kind], where)
        if "id" in item:
            demand(self.known.get(item["id"]) == item, f"{where}: item was changed")
        if kind == "function_call":
            demand(isinstance(item["arguments"], str), f"{where}.arguments")
            check_text(item["call_id"], r".{1,64}", f"{where}.call_id")
            check_text(item["name"], r"[a-zA-Z0-9_-]{1,64}", f"{where}.name")
            demand(item["call_id"] not in asked, f"{where}: duplicate call_id")
            return [*asked, item["call_id"]]
        if kind == "function_call_output":
            demand(
                item["call_id"] in asked, f"{where}: No tool call found for function call output"
            )
            self._check_content(item["output"], "user", where)
            return [each for each in asked if each != item["call_id"]]
        if kind == "message":
            demand(not asked or item["role"] == "assistant", f"{where}: output missing: {asked}")
            demand(item["content"], f"{where}.content is empty")
            self._check_content(item["content"], item["role"], where)
        return asked

    def _check_content(self, content: Any, role: str, where: str) -> None:
        allowed = ("input_text", "input_image", "input_file")
        allowed = ("output_text", "refusal") if role == "assistant" else allowed
        for part in content if isinstance(content, list) else ():
            demand(part["type"] in allowed, f"{where}: {part['type']}")
            url = part.get("image_url") or part.get("file_data")
            if url:
                check_data_url(url, where)

    def _check_reasoning(
        self, item: dict[str, Any], following: list[dict[str, Any]], ids: list[Any], where: str
    ) -> None:
        own = item.get("id")
        if item.get("type") == "reasoning":
            behind = following[0] if following else {}
            missing = f"{where}: reasoning was provided without its required following item"
            demand(self.reasoned.get(behind.get("id"), {}).get("id") == own, missing)
            demand(self.stored or item.get("encrypted_content"), f"Item with id {own} not found")
        if own in self.reasoned:
            needed = self.reasoned[own]["id"]
            demand(needed in ids, f"{where}: provided without its required 'reasoning' item")


# --- The server -----------------------------------------------------------------------------------


class ModelServer:
    """Plays a script of replies to one conversation, and keeps the requests and refusals."""

    def __init__(self, wire: Any, replies: Sequence[Reply | dict[str, Any] | Callable[..., Any]]):
        self.wire = wire
        self.replies = list(replies)
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self.closed_early = threading.Event()
        self.may_finish = threading.Event()
        self.breaks_off = False  # after half of the events
        self.overloaded_at = 0  # the request whose stream has an error after half of the events
        self.holds = False  # after half of the events, until may_finish
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> typing.Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_finish.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _make_handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                try:
                    demand(self.path == server.wire.path, f"no such path: {self.path}")
                    server.wire.check(body)
                    answer = server._next()
                except Refused as refused:
                    server.refusals.append(str(refused))
                    error = {"type": "invalid_request_error", "message": str(refused)}
                    return self._send(400, {"type": "error", "error": error})
                if body.get("stream") and not answer.get("error"):
                    return self._send_stream(answer)
                return self._send(200, answer)

            def _send(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _send_stream(self, answer: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                frames = [server.wire.frame(event) for event in server.wire.stream(answer)]
                half = len(frames) // 2
                try:
                    self._write(frames[:half])
                    if server.breaks_off:
                        return
                    if len(server.requests) == server.overloaded_at:
                        return self._write([server.wire.OVERLOADED])
                    while server.holds and not server.may_finish.wait(0.01):
                        self._write([": keep-alive\n\n"])
                    self._write([*frames[half:], server.wire.END])
                except OSError:
                    server.closed_early.set()

            def _write(self, frames: Sequence[str]) -> None:
                self.wfile.write("".join(frames).encode())
                self.wfile.flush()

        return Handler

    def _next(self) -> dict[str, Any]:
        demand(self.replies, "the script is at its end")
        reply = self.replies.pop(0)
        if not isinstance(reply, Reply):
            return reply  # a body as it is
        return self.wire.answer(reply, len(self.requests))
