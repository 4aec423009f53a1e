"""JSON Schemas from type hints, by pydantic; and compiled validators, by jsonschema-rs. Both are
loaded on first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from edictum.core.jsonable import dumps, jsonable
from edictum.core.redaction import shorten
from edictum.errors import EdictumConfigError
from edictum.harness._functions import LAZY, hints_of, parameters_of, token_parameter
from edictum.harness._typed_arguments import TypedFunction, fields_of, is_plain, readable
from edictum.success import Misfit, error_key

HINT = "Install the extra: pip install 'edictum[harness]'."
FOREIGN = "[not fetched]"


def schemas_of(function: Callable[..., Any]) -> dict[str, Any]:
    """``parameters``, ``returns``, ``typed`` and ``token_parameter`` of a ToolSpec, from a
    function's type hints.
    """
    hints, token = hints_of(function), token_parameter(function)
    fields: dict[str, Any] = {}
    for name, parameter in parameters_of(function).items():
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise EdictumConfigError(
                f"tool {function!r}: parameter {name!r} cannot be named by a model.",
                hint="Give each parameter a name and a type, or pass parameters={...}.",
            )
        if name != token:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (readable(hints.get(name, Any)), default)
    parameters = _object_schema(function, fields)
    return {
        "parameters": parameters,
        "returns": _result_schema(hints),
        "typed": _typed(function, fields),
        "token_parameter": token,
    }


def _typed(function: Callable[..., Any], fields: dict[str, Any]) -> TypedFunction | None:
    """How arguments are read that are more than plain JSON; None if there are none."""
    adapter = _pydantic().TypeAdapter
    readers = {name: adapter(hint) for name, (hint, _) in fields.items() if not is_plain(hint)}
    return TypedFunction(function, readers) if readers else None


def _result_schema(hints: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the result, if its hint says something that can be held against a result as
    JSON. One that does not is no error.
    """
    hint = hints.get("return")
    if hint is None or hint is NoneType or not _is_json_type(hint):
        return None
    pydantic = _pydantic()
    try:
        schema: dict[str, Any] = pydantic.TypeAdapter(hint).json_schema(
            mode="serialization", by_alias=False
        )
    except Exception:
        return None
    schema.pop("title", None)
    return schema or None


PLAIN_TYPES = (str, int, float, bool, list, dict, tuple, NoneType, Any)


def _is_json_type(hint: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether values of this type look in JSON as pydantic's schema says. Other types may be
    written otherwise by us and by it.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal or hint in within:
        return True
    if origin is Annotated:
        return _is_json_type(inner[0], within)
    if origin is not None:
        return origin in (list, dict, tuple, Union, UnionType) and all(
            part is ... or _is_json_type(part, within) for part in inner
        )
    if (
        is_dataclass(hint) or hasattr(hint, "__required_keys__") or hasattr(hint, "model_fields")
    ):  # of a TypedDict, of a pydantic model
        return all(_is_json_type(part, (*within, hint)) for part in fields_of(hint))
    return hint in PLAIN_TYPES or (isinstance(hint, type) and issubclass(hint, Enum))


def _object_schema(function: Callable[..., Any], fields: dict[str, Any]) -> dict[str, Any]:
    pydantic = _pydantic()
    try:
        aliases = {
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


def defaults_of(
    parameters: Mapping[str, Any], function: Callable[..., Any] | None
) -> dict[str, Any]:
    """What arguments are when they are left out: those defaults of a schema that the function has
    as well, value and type alike.

    A default that JSON writes otherwise (an Enum, a date) is left to the function. None is as good
    as nothing.
    """
    properties = parameters.get("properties")
    stated = (
        {name: each["default"] for name, each in properties.items() if _has_default(each)}
        if isinstance(properties, Mapping)
        else {}
    )
    own = _own_defaults(function) if function is not None and stated else stated
    return {
        name: value
        for name, value in stated.items()
        if name in own and type(own[name]) is type(value) and own[name] == value
    }


def _has_default(schema: Any) -> bool:
    """A default that fits its own schema."""
    if not isinstance(schema, Mapping) or schema.get("default") is None:
        return False
    try:
        return bool(validator_for(schema).is_valid(schema["default"]))
    except (
        EdictumConfigError,
        ValueError,
    ):  # it refers to another part of the schema, or is no JSON
        return False


def _own_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
        }
    except (TypeError, ValueError):  # a builtin
        return {}


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError as exc:
        raise EdictumConfigError(
            "@tool makes schemas from type hints with pydantic, which is not installed.", hint=HINT
        ) from exc
    return pydantic


def misfit(schema: Mapping[str, Any], value: Any) -> str | None:
    """What keeps a value from fitting a schema, as JSON; None if it fits."""
    known = _RESULTS.get(id(schema))  # by identity: looking it up is part of every call
    if known is None or known[0] is not schema:
        if len(_RESULTS) >= 4096:
            _RESULTS.clear()
        known = _RESULTS[id(schema)] = (schema, validator_for(schema))
    validator = known[1]
    try:
        if validator.is_valid(value):
            return None
    except ValueError:  # a value that JSON does not know
        pass
    try:
        first = next(validator.iter_errors(jsonable(value)), None)
    # half a character, as in names of files: the validator cannot read it, and it is text all the
    # same
    except ValueError:
        return None
    return None if first is None else str(first.message)


def judge_of(
    schema: Mapping[str, Any] | None, fitting: frozenset[type]
) -> Callable[[Any], str | None]:
    """Tells why a result is a failure: it says so itself, or it is not what the tool promised to
    return.
    """
    if schema is None:
        return _says_itself
    at_once = fitting - {dict}  # a dict may say that it is an error

    def judge(value: Any) -> str | None:
        if type(value) in at_once:
            return None
        if (said := error_key(value)) is not None or type(value) in fitting:
            return said
        if type(value) in LAZY:
            return _not_run(value)
        wrong = misfit(schema, value)
        return (
            None
            if wrong is None
            else Misfit(f"The result does not fit the tool's schema: {shorten(wrong, 300)}")
        )

    return judge


def _says_itself(value: Any) -> str | None:
    """Why a result is a failure of which nothing else is known."""
    if isinstance(value, dict):
        return error_key(value) if value.get("error") else None
    return _not_run(value) if type(value) in LAZY else None


def _not_run(value: Any) -> Misfit:
    return Misfit(
        f"The tool returned a {type(value).__name__}, of which nothing has run. It must return a"
        " list, or what it has found."
    )


def know_result(schema: Mapping[str, Any] | None) -> None:
    """Work out the schema of a result before there is one."""
    if schema is not None and id(schema) not in _RESULTS:
        misfit(schema, None)


_RESULTS: dict[int, tuple[Mapping[str, Any], Any]] = {}
TYPES_OF = {
    "string": str,
    "integer": int,
    "number": int,
    "boolean": bool,
    "null": NoneType,
    "object": dict,
    "array": list,
}


def fitting_types(schema: Mapping[str, Any] | None) -> frozenset[type]:
    """The types whose values fit a schema that asks for a type and nothing else, whatever is in
    them.
    """
    if schema is None:
        return frozenset()
    more = {name for name in schema if name not in ("type", "title", "description")}
    open_ended = not more or (
        more == {"additionalProperties"} and schema["additionalProperties"] is True
    )
    kind = TYPES_OF.get(str(schema.get("type"))) if open_ended else None
    return frozenset() if kind is None else frozenset({kind})


def validator_for(schema: Mapping[str, Any]) -> Any:
    """A compiled validator; equal schemas share one."""
    return _compiled(dumps(dict(schema)))


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    try:
        import jsonschema_rs
    except ImportError as exc:
        raise EdictumConfigError(
            "Arguments are validated with jsonschema-rs, which is not installed.", hint=HINT
        ) from exc
    import json

    try:
        return jsonschema_rs.validator_for(json.loads(text), retriever=_not_fetched)
    except ValueError as exc:
        said, foreign, uri = str(exc).partition(FOREIGN)
        if foreign:
            raise EdictumConfigError(
                f"This JSON Schema refers to {shorten(uri.split()[0], 300)}, and what is elsewhere"
                " is not fetched.",
                hint="Put it into the schema's '$defs' and refer to '#/$defs/<name>'.",
            ) from exc
        why = shorten(said.partition("\n")[0].rstrip("."), 500)
        raise EdictumConfigError(
            f"This is not a JSON Schema: {why}.", hint="Pass a schema of type object."
        ) from exc


def _not_fetched(uri: str) -> Any:
    """Schemas come from servers as well: one must not make this process open an address, or a file,
    for it.
    """
    raise LookupError(f"{FOREIGN} {uri}")
