"""ToolArgValidator: arguments are what the tool's schema says, or the call is refused with what to
do about it.

A model's arguments are validated first. Only the fields that fail are repaired, by a fixed table,
and only for tools that may be repaired for; every repair is listed. What is valid is never touched,
and nothing is guessed: text that is not a number stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

from edictum.core._records import record
from edictum.core.freeze import thaw
from edictum.core.jsonable import jsonable, show
from edictum.core.redaction import shorten
from edictum.errors import EdictumConfigError
from edictum.harness._schemas import defaults_of, validator_for
from edictum.harness.tool_spec import ToolSpec

MAX_REPAIR_ATTEMPTS = 3  # a text that becomes an object may have fields that need repair as well
MAX_PROBLEMS = 8
MAX_JSON_CHARS = 1_000_000
INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
UNIONS = ("anyOf", "oneOf")
NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class Valid:
    """The arguments fit. ``repairs`` says what had to be changed."""

    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Invalid:
    """The arguments do not fit. ``signature`` is the same for the same kind of mistake."""

    details: str
    signature: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """What was sent is not a set of named arguments at all."""

    details: str


Validation: TypeAlias = Valid | Invalid


class ToolArgValidator:
    """Validates and repairs arguments. It keeps nothing; one serves all turns."""

    def __init__(self, *, coerce: bool = True) -> None:
        self._coerce = coerce

    def fits(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
        """Whether nothing is wrong with the arguments: the usual case, and a quick one."""
        try:
            return known_of(spec).fits(arguments)
        except ValueError:  # a value that JSON does not know
            return False

    def validate(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Validation:
        """The arguments as the tool will get them, or what is wrong with them. Never raises for
        what a model sent.
        """
        if self.fits(spec, arguments):
            return Valid(known_of(spec).filled(arguments))
        known, plain = known_of(spec), thaw(arguments)
        try:
            if known.validator.is_valid(plain):
                return known.read(plain)
        except ValueError:
            plain = jsonable(plain)
        return self._repaired(known, plain)

    def _repaired(self, known: KnownSchema, arguments: dict[str, Any]) -> Validation:
        spec, validator = known.spec, known.validator
        repairs: list[str] = []
        for _ in range(MAX_REPAIR_ATTEMPTS if self._coerce and spec.may_coerce else 0):
            made = [
                text
                for error in _errors(validator, arguments)
                if (text := _repair(error, arguments, spec)) is not None
            ]
            repairs += made
            if _is_valid(validator, arguments):
                return known.read(arguments, tuple(repairs))
            if not made:
                break
        return _invalid(spec, _errors(validator, arguments), arguments)


@record
class KnownSchema:
    """The schema of a tool's arguments, worked out."""

    spec: ToolSpec
    validator: Any  # compiled
    defaults: dict[str, Any]
    fits: Callable[
        [Mapping[str, Any]], bool
    ]  # whether nothing is wrong with arguments; ValueError: JSON does not know them

    def read(self, arguments: dict[str, Any], repairs: tuple[str, ...] = ()) -> Validation:
        """Arguments that fit the schema. A text that should be a date may still be none."""
        filled = self.filled(arguments)
        problems = [] if self.spec.typed is None else self.spec.typed.problems(filled)
        if not problems:
            return Valid(filled, repairs)
        said = shorten("; ".join(f"{where}: {what}" for where, what, _ in problems), 1_500)
        return Invalid(
            f"{said}.", "|".join(sorted(f"{where}:{kind}" for where, _, kind in problems))
        )

    def filled(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with those that were left out: a contract must see what the tool will do,
        not what the model has said of it.
        """
        for name in self.defaults:
            if name not in arguments:
                return {
                    **arguments,
                    **self.defaults,
                    **arguments,
                }  # in this order, and what was said counts
        return arguments


def known_of(spec: ToolSpec) -> KnownSchema:
    """Kept by the identity of the spec: looking it up is part of every call."""
    known = _SCHEMAS.get(id(spec))
    if known is None or known.spec is not spec:
        if len(_SCHEMAS) >= 4096:
            _SCHEMAS.clear()
        validator = validator_for(_without_token(spec))
        known = KnownSchema(
            spec,
            validator,
            defaults_of(spec.parameters, spec.function),
            _fitting(spec, validator.is_valid),
        )
        _SCHEMAS[id(spec)] = known
    return known


def _fitting(
    spec: ToolSpec, is_valid: Callable[[Any], bool]
) -> Callable[[Mapping[str, Any]], bool]:
    """The validator itself where it says all: this is asked at every call."""
    if (typed := spec.typed) is None:
        return is_valid
    return lambda arguments: is_valid(arguments) and typed.fits(arguments)


def _without_token(spec: ToolSpec) -> Mapping[str, Any]:
    """The schema, in which no argument is called like the parameter that gets the deadline: a model
    must not set that.
    """
    if spec.token_parameter is None or spec.parameters.get("additionalProperties") is False:
        return spec.parameters
    return {**spec.parameters, "properties": {**_properties(spec), spec.token_parameter: False}}


_SCHEMAS: dict[int, KnownSchema] = {}


def parse_arguments(raw: Any) -> Mapping[str, Any] | Malformed:
    """What a model sent as arguments: an object, the JSON text of one, or nothing at all."""
    if isinstance(raw, (str, bytes)):
        if not raw.strip():
            return {}
        if len(raw) > MAX_JSON_CHARS:
            return Malformed(
                f"The arguments are {len(raw)} characters of text; at most {MAX_JSON_CHARS} are"
                " read."
            )
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            return Malformed(
                f"The arguments are not valid JSON: {shorten(str(exc), 200)}. Send one JSON object."
            )
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        return Malformed(
            f"The arguments are {_type_name(raw)}, not an object. Send one JSON object with the"
            " tool's parameters."
        )
    return raw


# --- Repairs --------------------------------------------------------------------------------------


def _errors(validator: Any, arguments: Any) -> list[Any]:
    try:
        return list(validator.iter_errors(arguments))[: MAX_PROBLEMS * 4]
    except ValueError:
        pass
    # half a character, which the validator cannot read, or cannot tell of: it can read how that is
    # written
    try:
        return list(validator.iter_errors(_spelled_out(arguments)))[: MAX_PROBLEMS * 4]
    except ValueError:
        return []


def _is_valid(validator: Any, arguments: Any) -> bool:
    try:
        return bool(validator.is_valid(arguments))
    except ValueError:  # as above: no JSON
        return False


def _spelled_out(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_spelled_out(str(name)): _spelled_out(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_spelled_out(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _repair(error: Any, arguments: dict[str, Any], spec: ToolSpec) -> str | None:
    """Repair one failing field in place. Returns what was done, or None when there is nothing safe
    to do.
    """
    path = list(error.instance_path)
    holder = _at(arguments, path[:-1]) if path else NOTHING
    if not isinstance(holder, (dict, list)):
        return None
    keyword, wanted = error.schema_path[-1], _at(spec.parameters, list(error.schema_path))
    value = _at(holder, path[-1:])
    if value is NOTHING:  # another error of the same field has led to its being left out
        return None
    where = ".".join(map(str, path))
    if value is None and isinstance(holder, dict) and not _required(error, spec):
        del holder[path[-1]]
        return f"{where}: null left out"
    new = (
        _as_one_of(value, wanted, spec)
        if keyword in UNIONS
        else _as_wanted(value, {keyword: wanted})
    )
    if new is NOTHING:
        return None
    holder[path[-1]] = new
    return f"{where}: {_brief(value)} read as {_brief(new)}"


def _at(root: Any, path: list[Any]) -> Any:
    """What stands at a path, or NOTHING: schema paths go through references, which are not
    followed.
    """
    for step in path:
        try:
            root = root[step]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return root


def _required(error: Any, spec: ToolSpec) -> bool:
    """Whether the object that holds this field demands it. Not to know counts as yes."""
    holder = _at(spec.parameters, list(error.schema_path)[:-3])  # .../properties/<name>/<keyword>
    return not isinstance(holder, Mapping) or error.instance_path[-1] in holder.get("required", ())


def _as_one_of(value: Any, branches: Any, spec: ToolSpec) -> Any:
    """The value as the one branch of a union that it can be read for; if it can be read in two
    ways, it is not read at all.
    """
    readings: list[Any] = []
    for branch in branches if isinstance(branches, list) else ():
        new = _as_wanted(value, _followed(branch, spec))
        if new is not NOTHING and _fits(new, branch, spec) and new not in readings:
            readings.append(new)
    return readings[0] if len(readings) == 1 else NOTHING


def _as_wanted(value: Any, wanted: Mapping[str, Any]) -> Any:
    if "enum" in wanted or "const" in wanted:
        return _matching_case(value, wanted["enum"] if "enum" in wanted else [wanted["const"]])
    return _as_type(value, wanted["type"]) if "type" in wanted else NOTHING


def _followed(branch: Any, spec: ToolSpec) -> Mapping[str, Any]:
    """A branch of a union, or what it refers to in the same schema."""
    reference = branch.get("$ref") if isinstance(branch, Mapping) else None
    found = (
        _at(spec.parameters, reference.split("/")[1:])
        if isinstance(reference, str) and reference.startswith("#/")
        else branch
    )
    return found if isinstance(found, Mapping) else {}


def _fits(value: Any, branch: Mapping[str, Any], spec: ToolSpec) -> bool:
    """Whether a value fits one branch, which may refer to definitions of the whole schema."""
    known = {
        name: spec.parameters[name] for name in ("$defs", "definitions") if name in spec.parameters
    }
    try:
        return bool(validator_for({**known, **branch}).is_valid(value))
    except (EdictumConfigError, ValueError):  # it refers to another place, or the value is no JSON
        return False


def _matching_case(value: Any, options: Any) -> Any:
    if not isinstance(value, str) or not isinstance(options, list):
        return NOTHING
    same = [
        option
        for option in options
        if isinstance(option, str) and option.casefold() == value.strip().casefold()
    ]
    return same[0] if len(same) == 1 else NOTHING


def _as_type(value: Any, wanted: Any) -> Any:
    names = wanted if isinstance(wanted, list) else [wanted]
    return next(
        (new for name in names if name in READERS and (new := READERS[name](value)) is not NOTHING),
        NOTHING,
    )


def _integer(value: Any) -> Any:
    found = INTEGER.fullmatch(value.strip()) if isinstance(value, str) else None
    return NOTHING if found is None else int(found[0])


def _float(value: Any) -> Any:
    if (whole := _integer(value)) is not NOTHING:
        return whole
    try:
        number = float(value) if isinstance(value, str) and len(value) < 40 else float("nan")
    except ValueError:
        return NOTHING
    return number if number - number == 0 else NOTHING  # neither NaN nor infinite


def _boolean(value: Any) -> Any:
    return (
        {"true": True, "false": False}.get(value.strip().lower(), NOTHING)
        if isinstance(value, str)
        else NOTHING
    )


def _object(value: Any) -> Any:
    found = _parsed(value)
    return found if isinstance(found, dict) else NOTHING


def _array(value: Any) -> Any:
    """The JSON text of a list, or one value where a list is wanted."""
    found = _parsed(value)
    return found if isinstance(found, list) else [value]


def _parsed(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > MAX_JSON_CHARS:
        return NOTHING
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return NOTHING


READERS: dict[Any, Callable[[Any], Any]] = {
    "integer": _integer,
    "number": _float,
    "boolean": _boolean,
    "object": _object,
    "array": _array,
}


# --- What the model is told -----------------------------------------------------------------------


def _invalid(spec: ToolSpec, errors: list[Any], arguments: Any) -> Invalid:
    names = list(_properties(spec))
    problems = [_explain(error, spec, arguments) for error in errors[:MAX_PROBLEMS]] or [
        "The arguments contain values that JSON does not know"
    ]
    valid = (
        f" Valid properties of {spec.name}: {', '.join(names)}."
        if names
        else f" {spec.name} takes no arguments."
    )
    kinds = sorted(
        f"{'.'.join(map(str, error.instance_path))}:{error.schema_path[-1]}" for error in errors
    )
    said = shorten("; ".join(problems), 1_500)
    return Invalid(
        f"{said if said.endswith('?') else said + '.'}{shorten(valid, 1_000)}",
        "|".join(kinds[:MAX_PROBLEMS]),
    )


def _properties(spec: ToolSpec) -> Mapping[str, Any]:
    found = spec.parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def _explain(error: Any, spec: ToolSpec, arguments: Any) -> str:
    where = ".".join(map(str, error.instance_path))
    keyword = error.schema_path[-1]
    wanted = _at(spec.parameters, list(error.schema_path))
    if kinds := _kinds(keyword, wanted, spec):
        return (
            f"{where or 'the arguments'}: expected {kinds}, received {_received(error, arguments)}"
        )
    if keyword == "additionalProperties" and isinstance(error.instance, Mapping):
        return "; ".join(
            _unknown_name(name, spec) for name in error.instance if name not in _properties(spec)
        ) or str(error.message)
    return f"{where}: {shorten(error.message, 300)}" if where else shorten(error.message, 300)


def _kinds(keyword: str, wanted: Any, spec: ToolSpec) -> str:
    """The types that would do, where types are all that is asked for."""
    if keyword == "type":
        return " or ".join(wanted) if isinstance(wanted, list) else str(wanted)
    branches = wanted if keyword in UNIONS and isinstance(wanted, list) else ()
    kinds = [
        found["type"] for branch in branches if set(found := _followed(branch, spec)) == {"type"}
    ]
    return " or ".join(map(str, kinds)) if len(kinds) == len(branches) else ""


def _unknown_name(name: str, spec: ToolSpec) -> str:
    close = get_close_matches(name, list(_properties(spec)), n=1, cutoff=0.5)
    return f"unknown property {_brief(name)}" + (f", did you mean {close[0]!r}?" if close else "")


def _received(error: Any, arguments: Any) -> str:
    """What was sent. The validator takes what JSON has no number for as null."""
    value = _at(arguments, list(error.instance_path))
    if isinstance(value, float) and value - value != 0:
        return f"{value}, which is no number that JSON knows"
    return f"{_type_name(error.instance)} {_brief(error.instance)}"


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if type(value) in names:
        return names[type(value)]
    return (
        "object"
        if isinstance(value, Mapping)
        else "array"
        if isinstance(value, (list, tuple))
        else type(value).__name__
    )


def _brief(value: Any) -> str:
    return shorten(show(value), 60)
