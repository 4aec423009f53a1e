"""Make JSON Schemas from type hints with pydantic, and validators from schemas with jsonschema-rs.

Both libraries are imported on first use.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from types import GenericAlias, NoneType
from typing import Any, get_args, get_origin

from edictum._optional import import_optional
from edictum.core.redaction import shorten
from edictum.core.values import dumps, to_json
from edictum.errors import EdictumConfigError
from edictum.harness._functions import find_token_parameter, get_hints, get_parameters
from edictum.harness._typed_arguments import JSON_NODES, PLAIN_NODES, TypedFunction, has_only_nodes
from edictum.success import SchemaMismatch, error_key, explain_lazy_result

_NOT_FETCHED = "[not fetched]"


# --- From type hints ------------------------------------------------------------------------------


def make_schemas(function: Callable[..., Any]) -> dict[str, Any]:
    """Return ``parameters``, ``returns``, ``typed`` and ``token_parameter`` of a ToolSpec."""
    hints, token = get_hints(function), find_token_parameter(function)
    fields: dict[str, Any] = {}
    for name, parameter in get_parameters(function).items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise EdictumConfigError(
                f"tool {function!r}: parameter {name!r} cannot be named by a model.",
                hint="Give each parameter a name and a type, or pass parameters={...}.",
            )
        if name != token:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (_with_lists(hints.get(name, Any)), default)
    return {
        "parameters": _make_parameters(function, fields),
        "returns": _make_result_schema(hints.get("return")),
        "typed": _make_typed_function(function, fields),
        "token_parameter": token,
    }


def _with_lists(hint: Any) -> Any:
    """Read an Iterable as a list: pydantic would validate it only while the body iterates."""
    if Iterable not in (hint, get_origin(hint)):
        return hint
    return GenericAlias(list, get_args(hint)) if get_args(hint) else list


def _make_parameters(function: Callable[..., Any], fields: dict[str, Any]) -> dict[str, Any]:
    pydantic = _import_pydantic()
    try:
        aliases = {  # a parameter may be called like a method of pydantic's models
            f"p{number}_": (hint, pydantic.Field(default, alias=name))
            for number, (name, (hint, default)) in enumerate(fields.items())
        }
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        model = pydantic.create_model("Arguments", __config__=config, **aliases)
        schema: dict[str, Any] = model.model_json_schema(by_alias=True)
    except Exception as exc:
        raise EdictumConfigError(
            f"tool {getattr(function, '__name__', function)!r}: no schema can be made from its type"
            f" hints: {exc}.",
            hint="Use types that JSON knows, or pass parameters={...}.",
        ) from exc
    schema.pop("title", None)
    for each in schema.get("properties", {}).values():
        each.pop("title", None)
    return schema


def _make_typed_function(
    function: Callable[..., Any], fields: dict[str, Any]
) -> TypedFunction | None:
    """Return a function that converts arguments to the hinted types; None if all of them are plain
    JSON.
    """
    adapter = _import_pydantic().TypeAdapter
    adapters = {name: adapter(hint) for name, (hint, _) in fields.items()}
    needed = {
        name: each for name, each in adapters.items() if not has_only_nodes(each, PLAIN_NODES)
    }
    return TypedFunction(function, needed) if needed else None


def _make_result_schema(hint: Any) -> dict[str, Any] | None:
    """Return the schema of results as JSON; None if the hint does not say what that looks like."""
    if hint is None or hint is NoneType:
        return None
    pydantic = _import_pydantic()
    try:
        adapter = pydantic.TypeAdapter(hint)
        if not has_only_nodes(adapter, JSON_NODES):
            return None
        schema: dict[str, Any] = adapter.json_schema(mode="serialization", by_alias=False)
    except Exception:  # a type that pydantic does not know
        return None
    schema.pop("title", None)
    return schema or None


def _import_pydantic() -> Any:
    problem = "@tool makes schemas from type hints with pydantic, which is not installed."
    return import_optional("pydantic", "harness", problem)


# --- Defaults -------------------------------------------------------------------------------------


def find_defaults(
    parameters: Mapping[str, Any], function: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return the schema's defaults that fit it and that the function has too.

    A default that JSON writes differently (an Enum, a date) is left to the function; so is None.
    """
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    found = {name: each["default"] for name, each in properties.items() if _has_default(each)}
    if function is None or not found:
        return found
    try:
        own = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
    return {
        name: value
        for name, value in found.items()
        if name in own and type(own[name].default) is type(value) and own[name].default == value
    }


def _has_default(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or schema.get("default") is None:
        return False
    try:
        return bool(compile_schema(schema).is_valid(schema["default"]))
    except (EdictumConfigError, ValueError):  # it has a $ref, or the default is not JSON
        return False


# --- Results --------------------------------------------------------------------------------------

ResultCheck = Callable[[Any], str | None]
_NO_DEMANDS = ("type", "title", "description")
_PYTHON_TYPES = {
    "string": str,
    "integer": int,
    "number": int,
    "boolean": bool,
    "null": NoneType,
    "object": dict,
    "array": list,
}


def make_result_check(schema: Mapping[str, Any] | None) -> ResultCheck:
    """Return a function that returns why a result is a failure, by itself or by its schema, or
    None.
    """
    fitting = _type_that_fits(schema or {})
    compiled = cache(lambda: compile_schema(schema or {}))

    def check(value: Any) -> str | None:
        kind = type(value)
        if kind is fitting:
            return error_key(value) if kind is dict else None
        if (lazy := explain_lazy_result(value)) is not None:
            return SchemaMismatch(lazy)
        if (error := error_key(value)) is not None or schema is None:
            return error
        mismatch = explain_mismatch(compiled(), value)
        if mismatch is None:
            return None
        problem = f"The result does not fit the tool's schema: {shorten(mismatch, 300)}"
        return SchemaMismatch(problem)

    return check


def _type_that_fits(schema: Mapping[str, Any]) -> type | None:
    """Return the type whose values all fit, for a schema that requires only a type."""
    demands = {name: each for name, each in schema.items() if name not in _NO_DEMANDS}
    if demands not in ({}, {"additionalProperties": True}):
        return None
    return _PYTHON_TYPES.get(str(schema.get("type")))


def explain_mismatch(validator: Any, value: Any) -> str | None:
    """Return why a value, as JSON, does not fit; None if it fits."""
    try:
        if validator.is_valid(value):
            return None
    except ValueError:  # a value that JSON does not know
        pass
    try:
        first = next(validator.iter_errors(to_json(value)), None)
    except ValueError:  # a lone surrogate, as in file names: text that the validator cannot read
        return None
    return None if first is None else str(first.message)


# --- Validators -----------------------------------------------------------------------------------


def compile_schema(schema: Mapping[str, Any]) -> Any:
    """Return a jsonschema-rs validator; equal schemas share one."""
    return _compile(dumps(dict(schema)))


@lru_cache(maxsize=4096)
def _compile(text: str) -> Any:
    problem = "JSON Schemas are checked with jsonschema-rs, which is not installed."
    jsonschema_rs = import_optional("jsonschema_rs", "harness", problem)
    try:
        return jsonschema_rs.validator_for(json.loads(text), retriever=_refuse_to_fetch)
    except ValueError as exc:
        message, not_fetched, uri = str(exc).partition(_NOT_FETCHED)
        if not_fetched:
            raise EdictumConfigError(
                f"This JSON Schema refers to {shorten(uri.split()[0], 300)}, and what is elsewhere"
                " is not fetched.",
                hint="Put it into the schema's '$defs' and refer to '#/$defs/<name>'.",
            ) from exc
        why = shorten(message.partition("\n")[0].rstrip("."), 500)
        hint = "Pass a schema of type object."
        raise EdictumConfigError(f"This is not a JSON Schema: {why}.", hint=hint) from exc


def _refuse_to_fetch(uri: str) -> Any:
    """Refuse to fetch a schema: one from a server must not make this process open an address or a
    file.
    """
    raise LookupError(f"{_NOT_FETCHED} {uri}")
