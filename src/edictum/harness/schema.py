"""JSON Schemas from type hints, by pydantic; and compiled validators, by jsonschema-rs. Both are loaded on first use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from edictum.core.jsonable import dumps
from edictum.errors import EdictumConfigError
from edictum.harness.turn_budget import DeadlineToken

HINT = "Install the extra: pip install 'edictum[harness]'."


def schemas_of(function: Callable[..., Any]) -> dict[str, Any]:
    """``parameters`` and ``token_parameter`` of a ToolSpec, from a function's type hints."""
    hints = _hints(function)
    token_parameter = next((name for name, hint in hints.items() if hint is DeadlineToken and name != "return"), None)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise EdictumConfigError(f"tool {function!r}: parameter {name!r} cannot be named by a model.",
                                     hint="Give each parameter a name and a type, or pass parameters={...}.")  # fmt: skip
        if name != token_parameter:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    return {"parameters": _object_schema(function, fields), "token_parameter": token_parameter}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as exc:
        raise EdictumConfigError(f"tool {function!r}: its type hints cannot be read: {exc}.",
                                 hint="Import what the hints name, or pass parameters={...}.") from exc  # fmt: skip


def _object_schema(function: Callable[..., Any], fields: dict[str, Any]) -> dict[str, Any]:
    pydantic = _pydantic()
    try:
        aliases = {f"p{number}_": (hint, pydantic.Field(default, alias=name))
                   for number, (name, (hint, default)) in enumerate(fields.items())}  # fmt: skip
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        model = pydantic.create_model("Arguments", __config__=config, **aliases)
        schema: dict[str, Any] = model.model_json_schema(by_alias=True)
    except Exception as exc:
        raise EdictumConfigError(f"tool {getattr(function, '__name__', function)!r}: no schema can be made from its type hints: {exc}.",
                                 hint="Use types that JSON knows, or pass parameters={...}.") from exc  # fmt: skip
    schema.pop("title", None)
    for each in schema.get("properties", {}).values():
        each.pop("title", None)
    return schema


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError as exc:
        raise EdictumConfigError("@tool makes schemas from type hints with pydantic, which is not installed.", hint=HINT) from exc
    return pydantic


def validator_for(schema: Mapping[str, Any]) -> Any:
    """A compiled validator; equal schemas share one."""
    return _compiled(dumps(dict(schema)))


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    try:
        import jsonschema_rs
    except ImportError as exc:
        raise EdictumConfigError("Arguments are validated with jsonschema-rs, which is not installed.", hint=HINT) from exc
    import json

    try:
        return jsonschema_rs.validator_for(json.loads(text))
    except ValueError as exc:
        raise EdictumConfigError(f"This is not a JSON Schema: {exc}.", hint="Pass a schema of type object.") from exc
