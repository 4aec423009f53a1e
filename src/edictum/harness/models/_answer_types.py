"""Typed answers: how to ask a provider for one, and how to read it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edictum._optional import import_optional
from edictum.core.redaction import shorten
from edictum.errors import EdictumConfigError
from edictum.harness.messages import ModelReply

# keywords that providers refuse in a strict schema; the answer is checked against them anyway
NOT_STRICT = frozenset(
    {
        *("default", "title", "examples", "discriminator"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "pattern"),
        *("minProperties", "maxProperties", "contentMediaType", "contentEncoding"),
    }
)
STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
MAX_PROBLEM_CHARS = 500
SAYS_TYPE = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
NAMED_SCHEMAS = ("properties", "$defs", "definitions")


@dataclass(frozen=True, slots=True)
class AnswerType:
    """A type of answers. ``given``: the provider's own option, passed on as it is."""

    name: str
    schema: Mapping[str, Any]
    read: Callable[[str], Any]
    given: Mapping[str, Any] | None = None

    def for_chat(self) -> dict[str, Any]:
        if self.given is not None:
            return dict(self.given)
        return {"type": "json_schema", "json_schema": self._describe()}

    def for_responses(self) -> dict[str, Any]:
        if self.given is None:
            return {"type": "json_schema", **self._describe()}
        inner = self.given.get("json_schema")  # written for chat completions
        return {"type": "json_schema", **inner} if isinstance(inner, Mapping) else dict(self.given)

    def for_anthropic(self) -> dict[str, Any]:
        if self.given is None:
            if is_open(self.schema):
                problem = f"response_format is {self.name}, which has objects of any keys."
                hint = "Anthropic's models cannot answer so: use a list of pairs, or a class."
                raise EdictumConfigError(problem, hint=hint)
            return {"type": "json_schema", "schema": make_strict(self.schema)}
        inner = self.given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else self.given.get("schema")
        if not isinstance(schema, Mapping):
            hint = 'Pass a type, or {"type": "json_schema", "schema": {...}}.'
            raise EdictumConfigError("response_format has no schema.", hint=hint)
        return {"type": "json_schema", "schema": dict(schema)}

    def _describe(self) -> dict[str, Any]:
        if is_open(self.schema) or has_any(self.schema):
            return {"name": self.name, "schema": dict(self.schema), "strict": False}
        return {"name": self.name, "schema": make_strict(self.schema), "strict": True}

    def parse(self, reply: ModelReply) -> ModelReply:
        """Return the reply with its answer as a value, or with what is wrong with it.

        A reply that asks for calls, was cut or refused is not an answer.
        """
        if reply.tool_calls or reply.stop_reason != "end":
            return reply
        try:
            return replace(reply, parsed=self.read(reply.text))
        except ValueError as exc:  # of json, and of pydantic
            problem = shorten("; ".join(_list_problems(exc)), MAX_PROBLEM_CHARS)
            return replace(reply, parse_error=f"The answer is not {self.name}: {problem}")


def _list_problems(error: ValueError) -> list[str]:
    """Return what is wrong with an answer; pydantic names each place."""
    if not callable(listed := getattr(error, "errors", None)):
        return [str(error)]
    found = listed(include_url=False, include_input=False, include_context=False)
    places = [".".join(map(str, each["loc"])) for each in found]
    said = [each["msg"] for each in found]
    return [f"{at}: {text}" if at else text for at, text in zip(places, said, strict=True)]


def read_answer_type(given: Any) -> AnswerType | None:
    """Read ``response_format``: None, a type, or the provider's own option as a dict."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        is_json = str(given.get("type")).startswith("json")
        return AnswerType("JSON", {}, json.loads if is_json else str, given)
    if inspect.isroutine(given):
        problem = f"response_format is {given!r}, a function."
        raise EdictumConfigError(problem, hint="Pass the type of the answer.")
    problem = "response_format is a type, which is read with pydantic."
    adapter_of = import_optional("pydantic", "harness", problem).TypeAdapter
    try:
        adapter = adapter_of(given)
        schema = adapter.json_schema()
    except Exception as exc:
        problem = f"response_format is {given!r}: no schema can be made from it: {exc}."
        raise EdictumConfigError(problem, hint="Pass a type that JSON knows.") from exc
    if "$ref" in schema:  # a type that contains itself; providers want an object on top
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    if schema.get("type") != "object":
        problem = f"response_format is {given!r}, whose answers are not JSON objects."
        raise EdictumConfigError(problem, hint="Put it into a field of a dataclass or a model.")
    return AnswerType(_make_name(given), schema, adapter.validate_json)


def _make_name(given: Any) -> str:
    """Return a name that providers accept."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", getattr(given, "__name__", "answer"))[:64] or "answer"


def is_open(schema: Any) -> bool:
    """Return whether objects may have keys that the schema does not name, so that it cannot be
    strict.
    """
    if isinstance(schema, list):
        return any(map(is_open, schema))
    if not isinstance(schema, Mapping):
        return False
    if schema.get("type") == "object" and schema.get("additionalProperties"):
        return True
    if schema.get("type") == "object" and "properties" not in schema:
        return True
    return any(map(is_open, schema.values()))


def has_any(schema: Any) -> bool:
    """Return whether a part of the answer may be of any type, so that the schema cannot be
    strict.
    """
    if isinstance(schema, list):
        return any(map(has_any, schema))
    if not isinstance(schema, Mapping):
        return False
    inner = [*(schema.get("properties") or {}).values(), schema.get("items", True)]
    if any(isinstance(each, Mapping) and SAYS_TYPE.isdisjoint(each) for each in inner):
        return True
    return any(map(has_any, schema.values()))


def make_strict(schema: Any) -> Any:
    """Return the schema as providers require it: every object closed, every property required, and
    no keyword that they refuse.
    """
    if isinstance(schema, list):
        return [make_strict(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:  # with nothing beside it
        return {"$ref": schema["$ref"], **_strict_definitions(schema)}
    made = {name: make_strict(value) for name, value in schema.items() if name not in NOT_STRICT}
    for name in NAMED_SCHEMAS:  # a property may be called as a keyword is
        if name in schema:
            made[name] = {key: make_strict(value) for key, value in schema[name].items()}
    if schema.get("format") not in STRICT_FORMATS:
        made.pop("format", None)
    if schema.get("type") == "object":
        made["additionalProperties"] = False
        made["required"] = list(schema.get("properties", {}))
    return {"anyOf" if name == "oneOf" else name: value for name, value in made.items()}


def _strict_definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    definitions = schema.get("$defs")
    return {"$defs": make_strict({"$defs": definitions})["$defs"]} if definitions else {}
