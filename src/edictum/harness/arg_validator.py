"""ToolArgValidator: validate a model's arguments against the tool's schema, and repair mistakes.

Only fields that fail are repaired, only for tools that allow it, and every repair is listed. Valid
values are never touched and nothing is guessed: text that is not a number stays text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from math import isfinite
from typing import Any, TypeAlias

from edictum.core._records import record
from edictum.core.freeze import thaw
from edictum.core.redaction import shorten
from edictum.core.values import show, to_json
from edictum.harness._schemas import compile_schema, find_defaults
from edictum.harness.tool_spec import ToolSpec

MAX_REPAIR_ATTEMPTS = 3  # an object parsed from text may have fields that need repair as well
MAX_ARGUMENT_PROBLEMS = 8
MAX_LISTED_ERRORS = 32
MAX_JSON_CHARS = 1_000_000
_UNIONS = ("anyOf", "oneOf")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Valid:
    """Arguments that fit the schema. ``repairs`` lists what was changed."""

    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Invalid:
    """Arguments that do not fit. ``signature`` is the same for the same kind of mistake.
    ``for_operators``: the details quote what a validator has raised.
    """

    details: str
    signature: str
    for_operators: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """The arguments are not a set of named values."""

    details: str


Validation: TypeAlias = Valid | Invalid


class ToolArgValidator:
    """Validates and repairs arguments. It has no state; one serves all turns."""

    def __init__(self, *, coerce: bool = True) -> None:
        self._coerce = coerce

    def fits(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments are valid as they are."""
        try:
            return get_argument_schema(spec).fits(arguments)
        except ValueError:  # a value that JSON does not know
            return False

    def validate(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Validation:
        """Return the arguments as the tool will get them, or what is wrong with them."""
        schema = get_argument_schema(spec)
        if self.fits(spec, arguments):
            return Valid(schema.fill_defaults(arguments))
        plain = thaw(arguments)
        try:
            if schema.validator.is_valid(plain):
                return schema.check_types(plain)
        except ValueError:
            plain = to_json(plain)
        repairs: list[str] = []
        for _ in range(MAX_REPAIR_ATTEMPTS if self._coerce and spec.may_coerce else 0):
            made = _repair_all(schema.validator, plain)
            repairs += made
            if _is_valid(schema.validator, plain):
                return schema.check_types(plain, tuple(repairs))
            if not made:
                break
        return _explain_all(spec, _list_errors(schema.validator, plain), plain)


@record
class ArgumentSchema:
    """The compiled schema of a tool's arguments."""

    spec: ToolSpec
    validator: Any
    defaults: dict[str, Any]
    fits: Callable[[Mapping[str, Any]], bool]  # raises ValueError for what is not JSON

    def check_types(self, arguments: dict[str, Any], repairs: tuple[str, ...] = ()) -> Validation:
        """Check arguments that fit the schema against the hints: not every text is a date."""
        filled = self.fill_defaults(arguments)
        problems = [] if self.spec.typed is None else self.spec.typed.problems(filled)
        if not problems:
            return Valid(filled, repairs)
        details = shorten("; ".join(f"{each.path}: {each.message}" for each in problems), 1_500)
        kinds = sorted(f"{each.path}:{each.kind}" for each in problems)
        hidden = any(each.for_operators for each in problems)
        return Invalid(f"{details}.", "|".join(kinds), hidden)

    def fill_defaults(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with defaults, so that contracts see what the tool will get."""
        for name in self.defaults:
            if name not in arguments:
                return {**arguments, **self.defaults, **arguments}  # keeps the model's order
        return arguments


def get_argument_schema(spec: ToolSpec) -> ArgumentSchema:
    """Return the compiled schema, which is kept on the spec: every call needs it."""
    schema = spec.argument_schema
    if schema is None:
        schema = _compile_arguments(spec)
        object.__setattr__(spec, "argument_schema", schema)
    return schema  # type: ignore[no-any-return]  # ToolSpec cannot name this class


def _compile_arguments(spec: ToolSpec) -> ArgumentSchema:
    parameters, typed = spec.parameters, spec.typed
    token = spec.token_parameter
    if token is not None and parameters.get("additionalProperties") is not False:
        # a model must not set the parameter that gets the deadline
        parameters = {**parameters, "properties": {**_properties(spec), token: False}}
    validator = compile_schema(parameters)
    is_valid: Callable[[Any], bool] = validator.is_valid
    return ArgumentSchema(
        spec,
        validator,
        find_defaults(spec.parameters, spec.function),
        is_valid if typed is None else lambda given: is_valid(given) and typed.fits(given),
    )


def parse_arguments(raw: Any) -> Mapping[str, Any] | Malformed:
    """Read what a model sent as arguments: an object, the JSON text of one, or nothing."""
    if isinstance(raw, (str, bytes)):
        if not raw.strip():
            return {}
        if len(raw) > MAX_JSON_CHARS:
            length = f"{len(raw)} characters of text; at most {MAX_JSON_CHARS} are read."
            return Malformed(f"The arguments are {length}")
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            why = shorten(str(exc), 200)
            return Malformed(f"The arguments are not valid JSON: {why}. Send one JSON object.")
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        given = f"The arguments are {_type_name(raw)}, not an object."
        return Malformed(f"{given} Send one JSON object with the tool's parameters.")
    return raw


# --- Repairs --------------------------------------------------------------------------------------


def _list_errors(validator: Any, arguments: Any) -> list[Any]:
    with suppress(ValueError):
        return list(islice(validator.iter_errors(arguments), MAX_LISTED_ERRORS))
    with suppress(ValueError):  # replace lone surrogates, which the validator cannot read
        text = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace")
        return list(islice(validator.iter_errors(json.loads(text)), MAX_LISTED_ERRORS))
    return []


def _is_valid(validator: Any, arguments: Any) -> bool:
    with suppress(ValueError):  # for a value that JSON does not know
        return bool(validator.is_valid(arguments))
    return False


def _repair_all(validator: Any, arguments: dict[str, Any]) -> list[str]:
    """Repair in place every error that can be repaired. Return what was done."""
    errors = _list_errors(validator, arguments)
    tried = [_repair(each, arguments, validator) for each in errors]
    return [text for text in tried if text is not None]


def _repair(error: Any, arguments: dict[str, Any], validator: Any) -> str | None:
    """Repair in place what can be repaired in only one way. Return what was done."""
    path = list(error.instance_path)
    if not path:
        return None
    holder, key = _look_up(arguments, path[:-1]), path[-1]
    value = _look_up(holder, [key])
    if value is _MISSING or not isinstance(holder, (dict, list)):
        return None  # left out by the repair of another error
    where = ".".join(map(str, path))
    if value is None and _leave_out(path, holder, arguments, validator):
        return f"{where}: null left out"
    readings = _list_readings(error, value)
    if error.kind.name in _UNIONS:
        readings = _keep_fitting(readings, path, holder, arguments, validator)
    if not readings:
        return None
    holder[key] = readings[0]
    return f"{where}: {_brief(value)} read as {_brief(readings[0])}"


def _leave_out(path: list[Any], holder: Any, arguments: Any, validator: Any) -> bool:
    """Remove a null from an object, unless the object must have the field."""
    if not isinstance(holder, dict):
        return False
    del holder[path[-1]]
    if _has_error_at(path, arguments, validator):
        holder[path[-1]] = None
        return False
    return True


def _keep_fitting(
    readings: list[Any], path: list[Any], holder: Any, arguments: Any, validator: Any
) -> list[Any]:
    """Return the only reading that fits the union; none if several do."""
    before, fitting = holder[path[-1]], []
    for reading in readings:
        holder[path[-1]] = reading
        if not _has_error_at(path, arguments, validator):
            fitting.append(reading)
    holder[path[-1]] = before
    return fitting if len(fitting) == 1 else []


def _has_error_at(path: list[Any], arguments: Any, validator: Any) -> bool:
    """Return whether a field, or something in it, is wrong or missing."""
    for error in _list_errors(validator, arguments):
        missing = [error.kind.value] if error.kind.name == "required" else []
        if [*error.instance_path, *missing][: len(path)] == path:
            return True
    return False


def _list_readings(error: Any, value: Any) -> list[Any]:
    """List the values that this one can be read as."""
    kind = error.kind
    match kind.name:
        case "type":
            readings = (_read_as(value, name) for name in kind.value)
            return [each for each in readings if each is not _MISSING][:1]
        case "enum":
            return _match_case(value, kind.value)
        case "const":
            return _match_case(value, [kind.value])
        case "anyOf" | "oneOf":
            return _list_union_readings(error, value)
    return []


def _list_union_readings(error: Any, value: Any) -> list[Any]:
    found: list[Any] = []
    for inner in (each for branch in error.kind.context for each in branch):
        if inner.instance_path == error.instance_path:
            found += [each for each in _list_readings(inner, value) if each not in found]
    return found


def _match_case(value: Any, options: Sequence[Any]) -> list[str]:
    if not isinstance(value, str):
        return []
    folded = value.strip().casefold()
    same = [each for each in options if isinstance(each, str) and each.casefold() == folded]
    return same if len(same) == 1 else []


_PYTHON_TYPES: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


def _read_as(value: Any, kind: str) -> Any:
    """Read JSON text as a value of this kind; read a single value as a list of one."""
    found = _parse_json(value)
    if isinstance(found, _PYTHON_TYPES.get(kind, ())) and (
        kind == "boolean" or not isinstance(found, bool)
    ):
        return found
    return [value] if kind == "array" else _MISSING


def _parse_json(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > MAX_JSON_CHARS:
        return _MISSING
    lower = value.strip().lower()
    try:
        found = json.loads(lower if lower in ("true", "false") else value)
    except (ValueError, RecursionError):
        return _MISSING
    return _MISSING if isinstance(found, float) and not isfinite(found) else found


def _look_up(root: Any, path: Sequence[Any]) -> Any:
    for step in path:
        try:
            root = root[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return root


# --- What the model is told -----------------------------------------------------------------------


def _explain_all(spec: ToolSpec, errors: list[Any], arguments: Any) -> Invalid:
    names = list(_properties(spec))
    problems = [_explain(error, names, arguments) for error in errors[:MAX_ARGUMENT_PROBLEMS]]
    text = shorten("; ".join(problems), 1_500) or "The arguments contain values that are not JSON"
    valid = (
        f" Valid properties of {spec.name}: {', '.join(names)}."
        if names
        else f" {spec.name} takes no arguments."
    )
    kinds = sorted(f"{'.'.join(map(str, each.instance_path))}:{each.kind.name}" for each in errors)
    return Invalid(
        f"{text if text.endswith('?') else text + '.'}{shorten(valid, 1_000)}",
        "|".join(kinds[:MAX_ARGUMENT_PROBLEMS]),
    )


def _properties(spec: ToolSpec) -> Mapping[str, Any]:
    found = spec.parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def _explain(error: Any, names: list[str], arguments: Any) -> str:
    where = ".".join(map(str, error.instance_path))
    if types := _list_expected_types(error):
        expected, received = " or ".join(types), _describe_received_value(error, arguments)
        return f"{where or 'the arguments'}: expected {expected}, received {received}"
    if error.kind.name == "additionalProperties":
        return "; ".join(_explain_unknown_name(name, names) for name in error.kind.value)
    message = shorten(error.message, 300)
    return f"{where}: {message}" if where else message


def _list_expected_types(error: Any) -> list[str]:
    """Return the types that would fit, if the type is the only mistake."""
    if error.kind.name == "type":
        return list(error.kind.value)
    if error.kind.name not in _UNIONS:
        return []
    wrong = [(error.instance_path, "type")]  # for every branch of the union
    branches = error.kind.context
    if any([(each.instance_path, each.kind.name) for each in part] != wrong for part in branches):
        return []
    return [name for (inner,) in branches for name in inner.kind.value]


def _explain_unknown_name(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"unknown property {_brief(name)}" + (f", did you mean {close[0]!r}?" if close else "")


def _describe_received_value(error: Any, arguments: Any) -> str:
    value = _look_up(arguments, error.instance_path)
    if isinstance(value, float) and not isfinite(value):  # the validator takes it as null
        return f"{value}, which is not a JSON number"
    return f"{_type_name(error.instance)} {_brief(error.instance)}"


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, Mapping):
        return "object"
    return "array" if isinstance(value, (list, tuple)) else type(value).__name__


def _brief(value: Any) -> str:
    return shorten(show(value), 60)
